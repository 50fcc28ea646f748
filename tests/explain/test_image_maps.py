import numpy as np

from itta.explain.image_maps import choose_varied


def test_images_of_many_classes_are_shown() -> None:
    labels = np.array([0, 0, 0, 1, 2, 2, 1])
    assert choose_varied(np.array([1, 0, 2, 5, 4, 3, 6]), labels, 4) == [1, 5, 3, 0]
    assert choose_varied(np.array([2, 0, 1]), np.full(3, -1), 2) == [2, 0]
    assert choose_varied(np.array([2, 0, 1]), np.full(3, -1), 9) == [2, 0, 1]
