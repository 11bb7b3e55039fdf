"""Stand-in for a GPU: tensors of another device that compute on the CPU, and mix as CUDA's do.

Torch's private backend gives the device its name, its guard and its autograd; a tensor wraps one of
the CPU. Values are real, so results can be compared with the CPU's. As on a GPU, an operation
refuses tensors of two devices, `.numpy()` refuses, and kernels that only a CPU has are missing.
What makes the host wait for the device is counted, by the line that asked for it.

A process cannot be rid of the backend again: only processes of its own may call `register`.
"""

import re
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.backend_registration import _DummyBackendModule, _setup_privateuseone_for_python_backend

aten = torch.ops.aten

NAME: Final = "standin"
_IN_PRODUCT: Final = re.compile(r"(qnet|training|server)/[a-z_]+/[a-z_]+\.py$")
_WAITS: Final = {
    aten._local_scalar_dense.default,
    aten.nonzero.default,
    aten.masked_select.default,
    aten.equal.default,
    aten.repeat_interleave.Tensor,
    aten._unique2.default,
    aten.unique_consecutive.default,
}
"""Operations whose result, or its size, the host has to know."""

_TAKE_INDICES_OF_THE_CPU: Final = {
    aten.index.Tensor,
    aten.index_put.default,
    aten.index_put_.default,
    aten._index_put_impl_.default,
}
_COPIES: Final = {aten.copy_.default, aten._to_copy.default}
_FLOATING_ONLY: Final = {aten.mm.default, aten.bmm.default, aten.addmm.default, aten.baddbmm.default}


_LIBRARIES: Final[list[torch.library.Library]] = []
"""Kept: what a library registers ends with it."""


class StandInTensor(Tensor):
    """A tensor of the stand-in device; `host` holds its values."""

    host: Tensor

    @staticmethod
    def __new__(cls, host: Tensor) -> "StandInTensor":
        # A view of a weight is an ordinary tensor in inference mode, too.
        with torch.inference_mode(host.is_inference()):
            made: StandInTensor = Tensor._make_wrapper_subclass(
                cls,
                host.shape,
                strides=host.stride(),
                storage_offset=host.storage_offset(),
                dtype=host.dtype,
                device=torch.device(NAME, 0),
                requires_grad=host.requires_grad,
            )
        made.host = host.detach()
        return made

    __torch_function__ = torch._C._disabled_torch_function_impl  # type: ignore[assignment]

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, func: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Compute outside of `counted_waits`."""
        with _StandInMode(Waits()):
            return func(*args, **(kwargs or {}))

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle as a tensor of the CPU, which is what a saved state is loaded as."""
        return self.host.__reduce_ex__(protocol)

    def tolist(self) -> Any:
        """Values, for which the host waits."""
        return self.cpu().tolist()

    def numpy(self, *, force: bool = False) -> Any:
        """Refuse, as CUDA tensors do."""
        raise TypeError("can't convert device type tensor to numpy")

    def untyped_storage(self) -> Any:
        """The storage of the values, by which savers tell tied weights."""
        return self.host.untyped_storage()

    def data_ptr(self) -> int:
        """Address of the values."""
        return self.host.data_ptr()

    @property
    def data(self) -> Tensor:
        """The same tensor outside of autograd."""
        return self.detach()

    @data.setter
    def data(self, value: Tensor) -> None:
        assert isinstance(value, StandInTensor), "tensor.data of the CPU for one on a device"
        Tensor.data.__set__(self, value)  # type: ignore[attr-defined]
        self.host = value.host


class Waits(Counter[str]):
    """Counts by line of the product: `wait` for a result, `send` of a copy that blocks the host."""

    def note(self, kind: str) -> None:
        """Count one, at the innermost line of the product."""
        frame = sys._getframe(1)
        while frame.f_back and not _IN_PRODUCT.search(frame.f_code.co_filename):
            frame = frame.f_back
        where = _IN_PRODUCT.search(frame.f_code.co_filename)
        self[f"{kind} {where[0]}:{frame.f_lineno}" if where else f"{kind} elsewhere"] += 1

    def of(self, kind: str) -> int:
        """Sum over all lines."""
        return sum(count for line, count in self.items() if line.startswith(kind))


class _StandInMode(TorchDispatchMode):
    def __init__(self, waits: Waits) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._waits = waits

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if _is_composite(func):
            with self:
                return func.decompose(*args, **(kwargs or {}))
        return _compute(func, args, kwargs or {}, self._waits)


@cache
def _is_composite(func: Any) -> bool:
    """True of an operation made of others, which inference mode passes on whole."""
    key = "CompositeImplicitAutograd"
    return torch._C._dispatch_has_kernel_for_dispatch_key(func.name(), key)


class _Backend(_DummyBackendModule):
    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16, torch.float16]


def register() -> None:
    """Make the device known to this process, with what autocast does to products of matrices."""
    _setup_privateuseone_for_python_backend(NAME, _Backend())
    others = torch.library.Library("_", "IMPL")
    others.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
    products = torch.library.Library("aten", "IMPL")
    for name in ("linear", "matmul", "bmm"):
        products.impl(name, _in_low_precision(getattr(aten, name)), "AutocastPrivateUse1")
    _LIBRARIES.extend((others, products))


def _in_low_precision(product: Any) -> Any:
    def cast(*args: Any) -> Any:
        kind = torch.get_autocast_dtype(NAME)
        with torch.autocast(NAME, enabled=False):
            return product(*(a.to(kind) if isinstance(a, Tensor) else a for a in args))

    return cast


@contextmanager
def counted_waits() -> Iterator[Waits]:
    """Within this the device is there, and what makes the host wait is counted."""
    waits = Waits()
    lifts = torch._C._only_lift_cpu_tensors()
    torch._C._set_only_lift_cpu_tensors(True)
    torch.__future__.set_swap_module_params_on_conversion(True)  # tied weights stay tied
    try:
        with _StandInMode(waits):
            yield waits
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)
        torch._C._set_only_lift_cpu_tensors(lifts)


def _compute(func: Any, args: Any, kwargs: Any, waits: Waits) -> Any:
    tensors = list(_tensors((*args, *kwargs.values())))
    ours = [one for one in tensors if isinstance(one, StandInTensor)]
    device = kwargs.get("device")
    asked = None if device is None else torch.device(device).type
    if not ours and asked != NAME:
        return func(*args, **kwargs)
    if ours:
        _refuse_others(func, tensors, args)
    if func in _COPIES:
        return _copied(func, args, kwargs, asked, waits)
    for index in _indices(func, args):
        if isinstance(index, Tensor) and index.dtype in (torch.bool, torch.uint8):
            waits.note("wait")
        elif isinstance(index, Tensor) and not isinstance(index, StandInTensor) and index.ndim:
            waits.note("send")
    if func in _WAITS:
        waits.note("wait")
    if func is aten._fused_sdp_choice.default:
        return 0  # the plain kernel: the others have an operation for each device
    options = {name: _host(value) for name, value in kwargs.items()}
    if asked == NAME:
        options |= {"device": torch.device("cpu")}
    if func is aten.histc.default and not args[0].is_floating_point():
        # Experts count their tokens so on CUDA; the CPU's kernel takes floats alone.
        return _wrapped(func, args, kwargs, func(args[0].host.float(), *args[1:], **options).to(args[0].dtype))
    return _wrapped(func, args, kwargs, func(*_host(args), **options))


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _host(value: Any) -> Any:
    """The value with the CPU's tensors in place of the device's."""
    if isinstance(value, StandInTensor):
        return value.host
    return type(value)(map(_host, value)) if type(value) in (list, tuple) else value


def _there(value: Any, known: dict[int, Tensor]) -> Any:
    """The value with tensors of the device in place of the CPU's."""
    if isinstance(value, Tensor):
        found = known.get(id(value))
        return StandInTensor(value) if found is None else found
    if type(value) in (list, tuple):
        return type(value)(_there(one, known) for one in value)
    return value


def _wrapped(func: Any, args: Any, kwargs: Any, out: Any) -> Any:
    """The outputs as tensors of the device; what was written to is returned itself."""
    written = [
        kwargs[argument.name] if argument.name in kwargs else args[number]
        for number, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None
        and argument.alias_info.is_write
        and (argument.name in kwargs or number < len(args))
    ]
    return _there(out, {id(t.host): t for t in _tensors(written) if isinstance(t, StandInTensor)})


def _copied(func: Any, args: Any, kwargs: Any, asked: str | None, waits: Waits) -> Any:
    """Copies between devices, and within one."""
    if func is aten.copy_.default:
        to, source = args[:2]
        free = len(args) > 2 and args[2]
        _note_copy(waits, source, to_device=isinstance(to, StandInTensor), free=free)
        _host(to).copy_(_host(source))
        return to
    source = args[0]
    to_device = isinstance(source, StandInTensor) if asked is None else asked == NAME
    _note_copy(waits, source, to_device=to_device, free=kwargs.get("non_blocking"))
    options = {k: v for k, v in kwargs.items() if k not in ("device", "non_blocking")}
    made = aten._to_copy.default(_host(source), **options)
    return StandInTensor(made) if to_device else made


def _note_copy(waits: Waits, source: Tensor, *, to_device: bool, free: bool | None) -> None:
    if isinstance(source, StandInTensor) and not to_device:
        waits.note("wait")
    elif to_device and not isinstance(source, StandInTensor) and not free and source.numel():
        # An empty tensor, with which transformers' caches begin, takes no copy.
        waits.note("send")


def _indices(func: Any, args: Any) -> list[Any]:
    return list(args[1]) if func in _TAKE_INDICES_OF_THE_CPU else []


def _refuse_others(func: Any, tensors: list[Tensor], args: Any) -> None:
    """Refuse what CUDA refuses: tensors of two devices, and kernels that it lacks."""
    name = str(func)
    if "for_cpu" in name or "mkldnn" in name:
        raise NotImplementedError(f"Could not run '{name}' with arguments from the 'CUDA' backend")
    if func in _FLOATING_ONLY and not tensors[0].is_floating_point():
        raise RuntimeError(f'"{name}" not implemented for {tensors[0].dtype} on cuda')
    allowed = {id(one) for one in _indices(func, args)}
    if func not in _COPIES and any(
        not isinstance(one, StandInTensor) and one.ndim and id(one) not in allowed for one in tensors
    ):
        raise RuntimeError(f"Expected all tensors to be on the same device, but {name} got {NAME} and cpu")
