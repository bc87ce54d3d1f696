from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class ExampleRequest(_message.Message):
    __slots__ = ("request", "v1beta1_field")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    V1BETA1_FIELD_FIELD_NUMBER: _ClassVar[int]
    request: str
    v1beta1_field: str
    def __init__(self, request: _Optional[str] = ..., v1beta1_field: _Optional[str] = ...) -> None: ...

class ExampleResponse(_message.Message):
    __slots__ = ("error",)
    ERROR_FIELD_NUMBER: _ClassVar[int]
    error: str
    def __init__(self, error: _Optional[str] = ...) -> None: ...
