"""Detectors: Faster R-CNN (Ren et al. 2015) and Mask R-CNN (He et al. 2017), with and without a feature pyramid.

boxes        areas, IoU, coordinates relative to anchors       matching   which object an anchor or region belongs to
anchors      boxes at every position of a feature map          fpn        feature pyramid
nms          non-maximum suppression                           rpn        region proposal network
roi_align    features of regions, from one or several levels   heads      class, box and mask of a region
ops          torchvision's operators, or those above           detector   all of them
"""
