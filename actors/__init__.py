"""The actors: all code that waits.

This is the graph of their messages. An arrow leads to an inbox, which is a Trio memory channel. Next to it are the
messages of ``plugind.protocol.messages`` that are sent there::

                        SocketAppeared, SocketVanished, SocketTouched,
                        EntryRefused, EntryIgnored, ScanCompleted
      Watcher ──────────────────────────────────────────────────────┐
      one per root ◄──────────────── LookNow ─────────────────────┐ ▼
         │                HandlerAdded, HandlerRemoved,        Reconciler ──── StartRegistration ───► Supervisor
         │                RetryAsked, StopAsked                owns desired                               │
         │      Supervisor ───────────────────────────────────►and actual                        starts it, and hands
         │                                                       ▲  │  │                         back its address
         │                  Claimed, PluginRegistered, Released, │  │  │ RoleChanged, NameDefended,
         │                  SocketReplaced, RegistrationEnded    │  │  │ StateChanged (of refused entries)
         │                                                       │  │  └────────────────────────────────┐
         │                  SocketAppeared, SocketVanished,      │  ▼                                   │
         │                  Admitted, NameWanted, TryNow … ──► Registration ── StateChanged ─────────────┤
         │                                                     one per path        OwnerChanged          │
         │                                                       │  ▲                                    │
         │             Validate, Register, Deregister,           ▼  │ HandlerAnswered                    │
         │             Withdraw, GiveWay                                                                 │
         │                                                     Handler                                   ▼
         │                                                     one per type                           Status
         └────────────────────────── RootReported ──────────────────────────────────────────────────► the view,
                                                                                                      the socket
                                                                                                         ▲
                          WatchLiveness, UnwatchLiveness ──►                                             │
            Registration                                     Liveness ────────── ServingChanged ─────────┘
                          ◄── ListenerFound, ListenerLost

Asks flow down by ``send_nowait`` into inboxes whose size the protocol bounds: a registration has at most one ask under
way, and the reconciler sends to a registration what is the case at its path now. Reports flow up by ``await send``: to
the liveness actor, which waits for the reconciler and the status actor, to the reconciler, which waits only for the
status actor, and to the status actor, which waits for no other. So no circle of actors blocks on each other.

Beside the handler actors are the links (``plugind.actors.links``): a handler actor opens, starts and ends them by
calls, the reconciler sends them ``RoleChanged`` and ``PluginDisplaced``, and they send ``UsableChanged`` and
``PluginGone`` to the reconciler, ``HealthReported`` and ``FollowEnded`` to the status actor. No actor waits for them
but a handler actor for the end of a follow, for a few seconds. The status socket and the embedding program send them
``FactsAsked``, which is answered at once. Handlers of drivers send ``CallsEnded`` and ``EventNoted`` to the status
actor.

Registrations and the liveness actor also send ``ListenerChanged`` to the reconciler, and registrations
``SocketDialed`` and ``PluginRefused``: the life of a plugin at a path begins when a dial has reached its socket, and
ends with its listener (``plugind.protocol.lives``).

The followers of device plugins, which are links of the handler, send ``plugind.protocol.device_messages`` to the
devices actor by ``send_nowait``; its inbox keeps of each kind of message of a plugin only the newest. The status socket
asks it with a deadline. It sends to those that ask, and to the lease actor.

The lease actor (``plugind.actors.leases``) is sent ``OfferChanged`` and ``OfferEnded`` by the devices actor,
``LeaseAsked``, ``AskerLeft``, ``ReleaseAsked`` … by the status socket and the embedding program, and ``Saved``,
``OwnerEnded``, ``PluginEnded`` and ``FileWritten`` by its own parts, all of ``plugind.protocol.leases.messages`` and by
``send_nowait``; the rules that bound its inbox are in ``inbox.py``. To the task inside of the follow of a device plugin
it sends ``AllocateAsked``, ``PreferenceAsked`` and ``CallWithdrawn``, and each call is answered once::

      Followers ── InstanceAdded, ListReceived … ──► Devices ── OfferChanged, OfferEnded ──► Leases ◄── callers
          ▲  └──────────── Allocated, AllocationRefused, AllocationLost, Preferred ──────────► │ ▲
          └──────────────── AllocateAsked, PreferenceAsked, CallWithdrawn ─────────────────────┘ │
                                              Saving, Owners, CdiWriter ── Saved, OwnerEnded … ──┘

Each watcher has an inbox too, in which asks coalesce: ``RescanNow``, from the supervisor, and ``LookNow``, from the
reconciler, when the dial of a registration has found another socket at a path.

The reconciler also sends ``NamePassed`` and ``PluginDisplaced`` to the status actor, when a name or an endpoint passes
to another plugin.

The status socket and SIGHUP send ``ReloadAsked`` to the reloader (``plugind.actors.console.reloading``), which reads
the configuration again. The supervisor then sends each actor what has changed for it: ``SettingsChanged`` to the
registrations, ``CallTimeChanged`` to the handlers, ``PausesChanged`` to the links, ``WorldChanged`` to the reconciler,
``LeaseRulesChanged`` to the lease actor, ``TrustChanged`` to the watchers, the liveness and the status actor,
``RootAdded`` and ``RootRemoved`` to the reconciler, ``RootsChanged`` to the liveness and the status actor,
``ExpectationChanged`` to the status and the devices actor, and ``ConfigurationRead`` to the status actor.
``GET /config`` is ``ConfigurationAsked``.

The supervisor starts the registration actor that the reconciler asks for, and returns its address. Actors do not
import each other: the supervisor gives each actor the addresses that it may use.

PYTEST_DONT_REWRITE
"""
