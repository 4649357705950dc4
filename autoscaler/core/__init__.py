"""Decisions about the fleet: plain functions over frozen values.

The rule of this package.  Everything in here is pure, so that a decision can be tested, simulated and repeated:

* **No clock.**  The time comes in as ``now``, in seconds since the epoch, UTC.
* **No I/O.**  No database, network, file, environment, log, thread or lock.  Chance comes in as a number, too.
* **No memory.**  A function sees a `world.World` and a `pools.FleetPolicy` and returns values.  What one tick has to
  know of the last one stands in the world, where the observer puts it.
* **Frozen values.**  Only `plan_builder.PlanBuilder` and `packing.Bin` change, and they live within one call.
* **Types decide.**  A rule goes by states, kinds and fields; reasons are sentences for people, and no rule reads one.

Start with `plan.plan` (what to do) and `findings.settle` (what has become clear); both read from start to end.
"""
