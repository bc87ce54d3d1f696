"""The rules of leases: which device is given to whom, and until when.

An event goes into :class:`.book.Book`, and effects come out: events are the values of :mod:`.messages`, and effects
those of :mod:`.effects`. What an event means for one lease, a row of the table in :mod:`.states` says. The book has the
devices in :mod:`.stock`, and the line of those that wait for them in :mod:`.choosing`.

Leases are values (:mod:`.values`). :mod:`.rows` is their form in the state file, :mod:`.leases_json` and
:mod:`.asked_json` that on the status socket, and :mod:`.forms` and :mod:`.cdi` what processes and containers get.
"""
