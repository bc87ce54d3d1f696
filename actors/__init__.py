"""The actors: all code that waits.

An arrow leads to an inbox, which is a Trio memory channel; beside it are messages of ``plugind.protocol.messages``::

    Supervisor ── HandlerAdded, HandlerRemoved, RetryAsked, StopAsked … ─────────┐
                                                                                 ▼
    Watcher ── SocketAppeared, SocketVanished, SocketTouched, ScanCompleted … ─► Reconciler ── StartRegistration,
    one per root ◄── LookNow ─────────────────────────────────────────────────── owns desired  to the supervisor
      │                                                                          and actual
      │        ┌── Claimed, PluginRegistered, Released, SocketReplaced … ────────► ▲ │ │
      │        │                                                                     │ │ RoleChanged,
      │      Registration ◄── SocketAppeared, SocketVanished, Admitted, TryNow … ────┘ │ NameDefended
      │      one per path ── validate, register, deregister ─► a handler: no actor     ▼
      │        │ ▲ │                                                                 Status
      │        │ │ └── StateChanged, OwnerChanged ─────────────────────────────────► the view,
      │        │ └──── ListenerFound, ListenerLost ───── Liveness ─ ServingChanged ► the socket
      │        └────── WatchLiveness, UnwatchLiveness ─────► ▲                         ▲
      └─────────────── RootStatus ───────────────────────────────────────────────────┘

    Followers ── InstanceAdded, ListReceived … ──► Devices ── OfferChanged, OfferEnded ──► Leases ◄── callers
        ▲  └──────────── Allocated, AllocationRefused, AllocationLost, Preferred ──────────► │ ▲
        └──────────────── AllocateAsked, PreferenceAsked, CallWithdrawn ─────────────────────┘ │
                                            Saving, Owners, CdiWriter ── Saved, OwnerEnded … ──┘

Asks flow down by ``send_nowait`` into inboxes whose size the protocol bounds: the reconciler sends to a registration
what is the case at its path now, and answers a claim once. Reports flow up by ``await send``: to the liveness actor,
which waits for the reconciler and the status actor, to the reconciler, which waits for the status actor, and to the
status actor, which waits for no other. So no circle of actors blocks on each other.

Registrations also send ``SocketDialed`` and ``PluginRefused`` to the reconciler, and with the liveness actor
``ListenerChanged``. The reconciler also sends ``NamePassed`` and ``PluginDisplaced`` to the status actor.

A handler is called in the task of a registration, which opens, starts and ends its links by calls
(``plugind.actors.handlers.links``). The reconciler sends ``RoleChanged`` and ``PluginDisplaced`` to the links. They
send ``UsableChanged`` and ``PluginGone`` to the reconciler, ``HealthReported`` and ``FollowEnded`` to the status actor,
which asks them for facts by a call. Handlers of drivers send ``CallsEnded`` and ``EventNoted`` to the status actor.

The task for static devices (``devices/static.py``) sends the devices actor what followers send, and answers the calls
of leases itself.

The inbox of the devices actor keeps of each kind of message of a plugin only the newest. The lease actor is sent
``LeaseAsked``, ``AskerLeft``, ``ReleaseAsked`` … of ``plugind.protocol.leases.messages`` by the status socket and the
embedding program; the rules that bound its inbox are in ``leases/inbox.py``.

Each watcher joins what it is asked: ``RescanNow``, from the supervisor, and ``LookNow``. A reload is ``ReloadAsked`` to
``plugind.actors.console.reloading``, which lists what each actor is sent then; ``plugind.actors.node.reload`` sends it.

The supervisor (``plugind.actors.node.node``) starts the registration actor that the reconciler asks for, and returns
its address. Actors do not import each other: the supervisor gives each actor the addresses that it may use.
"""
