//! The sound rules keep every promise; each flaw breaks one, and is found.

use super::{
    Bounds, Course, Flaw, Likeness, Mode,
    explorer::{Explored, explore},
    promises::Promise,
    world::TRANSACTIONS,
};

const fn bounds(faults: u8, oddities: u8, passes: u8) -> Bounds {
    Bounds { faults, oddities, passes, server_crashes: 0, transactions: TRANSACTIONS }
}

/// Explores at least so many states, so that the model cannot shrink unnoticed.
fn holds(mode: Mode, bounds: Bounds, likeness: Likeness, least: usize) {
    let Explored { states, ends, counter_example, kinds, is_endless } =
        explore(Course { mode, flaw: None, bounds, likeness });
    println!("{mode:?}, {bounds:?}: {states} states, {ends} ends");
    if let Some(found) = counter_example {
        panic!("{found}");
    }
    assert!(!is_endless, "somebody may go on for ever without getting anywhere");
    assert!(states > least && ends > 0, "{states} states, {ends} ends: that is no longer all there is");
    let all = if mode == Mode::Leased { 12 } else { 14 };
    assert!(kinds == all || bounds.oddities == 0, "only {kinds} kinds of steps were taken");
}

/// Within the bounds that it takes, a flaw breaks this promise first.
fn breaks(flaw: Flaw, mode: Mode, bounds: Bounds, promise: Promise) {
    let likeness = Likeness::Exact;
    let explored = explore(Course { mode, flaw: Some(flaw), bounds, likeness });
    let found = explored.counter_example.expect("a counter-example");
    println!("{found}");
    assert_eq!(found.broken.promise, promise, "{found}");
}

#[test]
fn leased_rules_keep_their_promises() {
    holds(Mode::Leased, bounds(2, 1, 1), Likeness::Coarse, 500_000);
}

#[test]
fn transactional_rules_keep_their_promises() {
    holds(Mode::Transactional, bounds(2, 1, 1), Likeness::Coarse, 400_000);
}

#[test]
fn vacuum_in_many_processes_keeps_its_promises() {
    holds(Mode::Leased, bounds(1, 0, 3), Likeness::Coarse, 70_000);
}

/// With fewer transactions, but without the reasons that make states alike, or a step wait for no other.
#[test]
fn states_that_are_told_apart_keep_the_promises_too() {
    for mode in [Mode::Leased, Mode::Transactional] {
        holds(mode, Bounds { transactions: 2, ..bounds(2, 0, 1) }, Likeness::Exact, 50_000);
    }
}

/// Fewer transactions, and a server that crashes.
const fn with_server_crash(faults: u8, passes: u8) -> Bounds {
    Bounds { server_crashes: 1, transactions: 2, ..bounds(faults, 0, passes) }
}

#[test]
fn a_crash_of_the_server_breaks_no_promise() {
    for mode in [Mode::Leased, Mode::Transactional] {
        holds(mode, with_server_crash(1, 1), Likeness::Exact, 100_000);
    }
}

#[test]
fn a_settlement_by_its_epoch_alone_is_found() {
    breaks(Flaw::SettleByEpochAlone, Mode::Leased, with_server_crash(0, 0), Promise::Fencing);
}

#[test]
fn a_tick_that_is_not_durable_is_found() {
    breaks(Flaw::TickNotDurable, Mode::Leased, with_server_crash(0, 0), Promise::OrderOfAssignment);
}

#[test]
fn a_vacuum_that_does_not_look_again_is_found() {
    breaks(Flaw::VacuumFromMemory, Mode::Leased, with_server_crash(0, 1), Promise::Vacuum);
}

#[test]
fn a_tick_that_goes_by_ids_is_found() {
    breaks(Flaw::TickById, Mode::Leased, bounds(0, 0, 0), Promise::NothingLost);
}

#[test]
fn a_tick_without_its_predecessor_is_found() {
    breaks(Flaw::TickFromMemory, Mode::Leased, bounds(0, 0, 1), Promise::OrderOfAssignment);
}

#[test]
fn segments_without_their_tick_are_found() {
    breaks(Flaw::SegmentsWithoutLink, Mode::Leased, bounds(0, 0, 0), Promise::OrderOfAssignment);
}

#[test]
fn a_lease_that_is_taken_before_it_has_run_out_is_found() {
    breaks(Flaw::AcquireBeforeExpiry, Mode::Leased, bounds(0, 0, 0), Promise::Fencing);
}

#[test]
fn a_take_over_that_keeps_the_epoch_is_found() {
    breaks(Flaw::TakeoverKeepsEpoch, Mode::Leased, bounds(1, 0, 0), Promise::Fencing);
}

#[test]
fn a_settlement_without_its_epoch_is_found() {
    for mode in [Mode::Leased, Mode::Transactional] {
        breaks(Flaw::SettleWithoutEpoch, mode, bounds(2, 0, 0), Promise::Fencing);
    }
}

#[test]
fn a_settlement_without_its_predecessor_is_found() {
    breaks(Flaw::SettleFromMemory, Mode::Leased, bounds(1, 0, 1), Promise::Fencing);
}

#[test]
fn a_settlement_before_the_handler_is_found() {
    breaks(Flaw::SettleBeforeHandling, Mode::Leased, bounds(0, 0, 0), Promise::Cursor);
}

#[test]
fn a_cursor_that_passes_what_comes_again_is_found() {
    for mode in [Mode::Leased, Mode::Transactional] {
        breaks(Flaw::CursorPassesRetried, mode, bounds(0, 1, 0), Promise::Cursor);
    }
}

#[test]
fn effects_that_are_committed_apart_are_found() {
    breaks(Flaw::EffectsApart, Mode::Transactional, bounds(1, 0, 0), Promise::ExactlyOnce);
}

#[test]
fn a_vacuum_without_its_bound_is_found() {
    breaks(Flaw::VacuumUnbounded, Mode::Leased, bounds(0, 0, 1), Promise::Vacuum);
}

#[test]
fn a_vacuum_that_removes_what_is_newest_is_found() {
    for flaw in [Flaw::VacuumTakesNewestLink, Flaw::VacuumTakesNewestSegment, Flaw::VacuumTakesNewestTick] {
        breaks(flaw, Mode::Leased, bounds(0, 0, 1), Promise::Vacuum);
    }
}
