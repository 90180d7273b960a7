"""Readers of images with objects: COCO, Pascal VOC, YOLO, folders of masks, archives."""
