"""The rules of leases: which device is given to whom, and until when.

An event goes into :class:`.book.Book`, and effects come out: events are the values of :mod:`.messages`, and effects
those of :mod:`.effects`. A row of the table in :mod:`.states` says what an event means for one lease. The book has the
devices in :mod:`.stock`, and the line of those that wait for them in :mod:`.choosing`. It keeps the order of events,
writes and answers. Its decisions are functions: :mod:`.draining` has those about drains, :mod:`.grace` those about
containers that have ended, :mod:`.owners` those about owners, :mod:`.limits` those about requests, and
:mod:`.accepting` those about what plugins answer.

Leases are values (:mod:`.values`). :mod:`.rows` is their form in the state file, :mod:`.leases_json` and
:mod:`.asked_json` that on the status socket, and :mod:`.forms` and :mod:`.cdi` what processes and containers get.
"""
