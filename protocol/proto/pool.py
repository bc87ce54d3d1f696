"""The descriptor pool of plugind's own messages.

protobuf's default pool accepts each full name once. A program that embeds plugind may have stubs of its own for the
same packages, so ours are in a separate pool, and either may be imported first.

Two things follow. A message field whose type comes from Google's files belongs to this pool too: assign its fields
(``response.ready.value = True``), since the class in ``google.protobuf.wrappers_pb2`` is another one. And the pool
separates nothing under protobuf's pure-Python implementation, where a second file with the same names still conflicts;
upb, the default implementation, keeps pools apart.
"""

from __future__ import annotations

from google.protobuf import descriptor_pool, wrappers_pb2

#: Google's files that ours import.
IMPORTED = (wrappers_pb2,)

POOL = descriptor_pool.DescriptorPool()
for _module in IMPORTED:
    POOL.AddSerializedFile(_module.DESCRIPTOR.serialized_pb)
