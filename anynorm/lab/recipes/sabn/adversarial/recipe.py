"""sabn Table 3, Table 4 and Fig. 6: accuracies and test losses of AdvProp with four norms.

    anynorm reproduce sabn_adversarial --preset night

Paper: CIFAR-10, ResNet-18 trained on clean and adversarial images (eq. 7), each through a branch of the norms; PGD with 10 steps
of 2/255 and ε = 8/255. Table 3 has the clean branch, Table 4 the adversarial branch under PGD-10 and PGD-20, Fig. 6 the test
losses of both branches. From public code: PreAct-ResNet-18, SGD with learning rate 0.1, divided by 10 after epochs 50 and 150 of
200, 200 steps of warm-up, batch size 128, 45 000 training images, crops and flips, the mean of the two losses of eq. 7.

    smoke  64 digits, one epoch; checks that the code works and claims nothing
    desk   9600 images of CIFAR-10 at 16 × 16 pixels, PreAct-ResNet-8, 2 epochs of 150 steps, PGD-3 in training; 300 test images
           are attacked; a demonstration, which decides nothing unless its controls hold
    night  20 000 images at 16 × 16 pixels, PreAct-ResNet-8, 8 epochs of 312 steps, PGD-3 in training, 2000 attacked images;
           subject to a pilot until its record exists
    paper  the published setting

Controls: every network has learned. The paper's large effect is AuxBN against BN on clean images (9.6 points): without a part of
it there is nothing between the branches that a sandwich could improve, so SaAuxBN against AuxBN is not tested.

Scaled down in `desk` and `night`: images, network, epochs and the training attack. `desk` has the sum of the losses, so gradients
are twice those of the public code at the same learning rate; `night` and `paper` have their mean. Where this recipe differs from
the public code in all presets: attacks leave running statistics alone and run in eval mode (there: train mode, so that each pass
of an attack updates the running statistics of the adversarial branch); 10 training steps of PGD in `paper` as in the text (there:
7); a norm and a ReLU before the pooling (there: none); warm-up from 0 (there: from 0.01); the last epoch. ModeNorm is not in the
public code.

Further rows repeat AuxBN and, except in `desk`, SaAuxBN with train-mode attacks in training. Every network is attacked with norms
in eval and in train mode, and classifies in eval mode. Claims about these modes are ours.
"""

from __future__ import annotations

from anynorm.lab.recipes.sabn.adversarial.claims import claims, controls
from anynorm.lab.recipes.sabn.adversarial.results import plot_all, tables
from anynorm.lab.recipes.sabn.adversarial.settings import PRESETS
from anynorm.lab.recipes.support.adversarial import cells, measure
from anynorm.lab.recipes.support.recipe import Recipe

RECIPE = Recipe("sabn_adversarial", PRESETS, cells, measure, claims, plot_all, tables, controls)
