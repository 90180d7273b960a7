"""Changes that are reverted."""

import pytest
from torch import nn

from anynorm.surgery.find import find_norms
from anynorm.surgery.modes import preserve_modes
from anynorm.surgery.undo import all_or_nothing, temporary_changes


def replace_by_identity(site, error):
    with all_or_nothing() as undo_log:
        undo_log.replace(site, nn.Identity())
        if error:
            raise error


def call_in_eval_mode(model):
    with preserve_modes(model.modules()):
        model.eval()
        raise MemoryError


def test_temporary_changes_end_with_the_block_and_others_only_if_it_raises():
    model = nn.Sequential(nn.BatchNorm2d(4))
    (site,) = find_norms(model)
    with temporary_changes() as undo_log:
        undo_log.replace(site, nn.Identity())
        assert isinstance(model[0], nn.Identity)
    assert model[0] is site.module
    with pytest.raises(MemoryError):
        replace_by_identity(site, MemoryError())
    assert model[0] is site.module
    replace_by_identity(site, None)
    assert isinstance(model[0], nn.Identity)


def test_the_mode_of_each_module_is_restored_after_an_error():
    model = nn.Sequential(nn.BatchNorm2d(4).eval(), nn.Dropout())
    with pytest.raises(MemoryError):
        call_in_eval_mode(model)
    assert [module.training for module in model.modules()] == [True, False, True]
