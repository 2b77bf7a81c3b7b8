"""DDLBench's models for images of 28 and 32 pixels a side (kuangliu's, with its changes), written again in PyTorch."""
from torch import nn

VGG = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
RESNET = {18: (1, (2, 2, 2, 2)), 34: (1, (3, 4, 6, 3)), 50: (4, (3, 4, 6, 3)), 101: (4, (3, 4, 23, 3)),
          152: (4, (3, 8, 36, 3))}
MOBILENET = ((1, 16, 1, 1), (6, 24, 2, 1), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))


def convolution(inputs, outputs, kernel, stride=1, groups=1):
    return nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)


def projection(inputs, outputs, stride):
    return nn.Sequential(convolution(inputs, outputs, 1, stride), nn.BatchNorm2d(outputs))


class Block(nn.Module):
    """Convolutions with batch norms, ReLU after each but the last; a shortcut if there is one, ReLU if `ends_in_relu`."""

    def __init__(self, convolutions, shortcut, ends_in_relu):
        super().__init__()
        for i, each in enumerate(convolutions, 1):
            setattr(self, f"conv{i}", each)
            setattr(self, f"bn{i}", nn.BatchNorm2d(each.out_channels))
        if shortcut is not None:
            self.shortcut = shortcut
        self.convolutions, self.ends_in_relu, self.relu = len(convolutions), ends_in_relu, nn.ReLU()

    def forward(self, x):
        y = x
        for i in range(1, self.convolutions + 1):
            y = getattr(self, f"bn{i}")(getattr(self, f"conv{i}")(y))
            y = self.relu(y) if i < self.convolutions else y
        y = y + self.shortcut(x) if hasattr(self, "shortcut") else y
        return self.relu(y) if self.ends_in_relu else y


class ResNet(nn.Module):
    def __init__(self, depth, channels, num_classes):
        super().__init__()
        expansion, counts = RESNET[depth]
        self.conv1, self.bn1, self.relu = convolution(channels, 64, 3), nn.BatchNorm2d(64), nn.ReLU()
        inputs = 64
        for group, count in enumerate(counts):
            blocks, width = [], 64 << group
            for i in range(count):
                stride, outputs = 2 if group and not i else 1, width * expansion
                shape = [(3, stride), (3, 1)] if expansion == 1 else [(1, 1), (3, stride), (1, 1)]
                widths = [inputs] + [width] * (len(shape) - 1) + [outputs]
                blocks.append(Block(
                    [convolution(a, b, *kernel) for a, b, kernel in zip(widths, widths[1:], shape)],
                    nn.Identity() if stride == 1 and inputs == outputs else projection(inputs, outputs, stride), True))
                inputs = outputs
            setattr(self, f"layer{group + 1}", nn.Sequential(*blocks))
        self.avgpool, self.linear = nn.AvgPool2d(4), nn.Linear(inputs, num_classes)

    def forward(self, x):
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer4(self.layer3(self.layer2(self.layer1(x))))
        return self.linear(self.avgpool(x).flatten(1))


class Vgg(nn.Module):
    """MNIST's 28 x 28 are one place after four poolings: the fifth is left out."""

    def __init__(self, depth, image, channels, num_classes):
        super().__init__()
        layers = []
        for block, count in enumerate(VGG[depth]):
            width = min(64 << block, 512)
            for _ in range(count):
                layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
                channels = width
            if image > 1:
                layers += [nn.MaxPool2d(2, 2)]
                image //= 2
        self.features, self.classifier = nn.Sequential(*layers, nn.AvgPool2d(1, 1)), nn.Linear(512, num_classes)

    def forward(self, x):
        return self.classifier(self.features(x).flatten(1))


class MobileNetV2(nn.Module):
    def __init__(self, channels, num_classes):
        super().__init__()
        self.conv1, self.bn1, self.relu = convolution(channels, 32, 3), nn.BatchNorm2d(32), nn.ReLU()
        blocks, inputs = [], 32
        for expansion, outputs, count, first in MOBILENET:
            for i in range(count):
                stride, hidden = 1 if i else first, inputs * expansion
                shortcut = nn.Identity() if inputs == outputs else projection(inputs, outputs, 1)
                blocks.append(Block([convolution(inputs, hidden, 1), convolution(hidden, hidden, 3, stride, hidden),
                                     convolution(hidden, outputs, 1)], shortcut if stride == 1 else None, False))
                inputs = outputs
        self.layers = nn.Sequential(*blocks)
        self.conv2, self.bn2 = convolution(320, 1280, 1), nn.BatchNorm2d(1280)
        self.avgpool, self.linear = nn.AvgPool2d(4), nn.Linear(1280, num_classes)

    def forward(self, x):
        x = self.layers(self.relu(self.bn1(self.conv1(x))))
        return self.linear(self.avgpool(self.relu(self.bn2(self.conv2(x)))).flatten(1))


def named(name, image, channels, num_classes=10):
    if name == "mobilenet_v2":
        return MobileNetV2(channels, num_classes)
    if name.startswith("vgg"):
        return Vgg(int(name[3:]), image, channels, num_classes)
    return ResNet(int(name[6:]), channels, num_classes)
