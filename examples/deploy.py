"""You deploy a model: fold its norms into the convolutions, export it, and check that the predictions stay the same.

A norm whose statistics come from each input (here gn:8) cannot be folded. It is kept, and the report states the reason.

python examples/deploy.py
"""

from __future__ import annotations

import copy
import io

import torch
from sklearn.datasets import load_digits
from torch import nn

import anynorm

torch.manual_seed(0)
images, labels = (torch.tensor(array) for array in load_digits(return_X_y=True))
images = images.float().reshape(-1, 1, 8, 8) / 16
layers: list[nn.Module] = []
for inputs, outputs, spec in ((1, 16, "bn"), (16, 32, "hn:8"), (32, 32, "gn:8")):
    layers += [nn.Conv2d(inputs, outputs, 3, stride=2, padding=1), anynorm.make(spec, outputs), nn.ReLU()]
model = nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
for batch in torch.randperm(1300).split(50):
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
    optimizer.step()
model.eval()

folded = copy.deepcopy(model)
print(anynorm.fold(folded, images[:1]))

x = images[1300:]
shapes = ({0: torch.export.Dim("batch", max=1024)},)
file = io.BytesIO()  # or a path, such as "model.pt2"
torch.export.save(torch.export.export(folded, (x[:2],), dynamic_shapes=shapes), file)
file.seek(0)
exported = torch.export.load(file).module()  # needs torch, but neither anynorm nor the code of the model
with torch.no_grad():
    expected, results = model(x), {"folded": folded(x), "exported": exported(x)}
for name, output in results.items():
    same = int((output.argmax(1) == expected.argmax(1)).sum())
    is_close = torch.allclose(output, expected, rtol=1e-4, atol=1e-4)
    print(f"{name}: {same} of {len(x)} predictions agree with the model; outputs within 1e-4: {is_close}")

# Output:
# path  norm  into  layer_position  note
# 1     bn    0     before
# 4     hn:8  3     before
# 7     gn:8                        not folded: the statistics of gn:8 come from each input, so no fixed (a, b) …
# 2 of 3 norms folded; the output changed by … of its largest value.
# folded: 497 of 497 predictions agree with the model; outputs within 1e-4: True
# exported: 497 of 497 predictions agree with the model; outputs within 1e-4: True
