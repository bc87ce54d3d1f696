"""The actors: all that waits.

The cast, and the graph of their messages. A solid arrow is an inbox, a Trio memory channel; what is written beside it
is what travels there (``plugind.protocol.messages``)::

                        SocketAppeared, SocketVanished, SocketTouched,
                        EntryRefused, ScanCompleted
      Watcher ──────────────────────────────────────────────────────┐
      one per root                                                  ▼
         │                HandlerAdded, HandlerRemoved,        Reconciler ──── StartRegistration ───► Supervisor
         │                RetryAsked, StopAsked                owns desired                               │
         │      Supervisor ───────────────────────────────────►and actual                        starts it, and hands
         │                                                       ▲  │  │                         back its address
         │                  Claimed, PluginRegistered, Released, │  │  │ RoleChanged,
         │                  RegistrationEnded                    │  │  │ StateChanged (of refused entries)
         │                                                       │  │  └────────────────────────────────┐
         │                  SocketAppeared, SocketVanished,      │  ▼                                   │
         │                  Admitted, NoHandler, TryNow …  ──► Registration ── StateChanged ─────────────┤
         │                                                     one per path                              │
         │                                                       │  ▲                                    │
         │             Validate, Register, Deregister, Withdraw  ▼  │ HandlerAnswered                    │
         │                                                     Handler                                   ▼
         │                                                     one per type                           Status
         └────────────────────────── RootReported ──────────────────────────────────────────────────► the view,
                                                                                                      the socket

Asks flow down by ``send_nowait`` into inboxes that the protocol bounds: a registration has at most one ask under way,
and of one path the reconciler tells levels, not edges. Reports flow up by ``await send``: to the reconciler, which
waits only for Status, and to Status, which waits for nobody. So no cycle of blocking sends exists.

No actor imports another: the supervisor binds them.
"""
