//! Each kind of fault, put into an episode without any, is found and counted as what it is.

use super::*;
use crate::{
    clock::{millis, seconds},
    history::Fate,
};

/// The first leased and the first transactional process.
const LEASED: u32 = 1;
const TRANSACTIONAL: u32 = 2;
/// Another one, which handles what was handled before.
const AGAIN: u32 = 7;
const LEASE: u64 = 50;

/// An episode in which all is well: 40 transactions one after the other, each message handled a moment after its commit.
fn well() -> Evidence {
    let shape = Shape { seed: 5, queues: vec![(Mode::Leased, 2), (Mode::Transactional, 2)], is_plain: false };
    let mut evidence = Evidence {
        shape: shape.clone(),
        ledger: Vec::new(),
        produced: Vec::new(),
        handled: Vec::new(),
        effects: Vec::new(),
        dead: Vec::new(),
        rejected: HashSet::new(),
        leases: HashMap::from([(LEASED, LEASE), (AGAIN, LEASE)]),
        abandoned: HashSet::new(),
        faults: Vec::new(),
        complaints: Vec::new(),
        slow_batches: 0,
        starved: 0,
    };
    let (mut now, mut id, mut call) = (seconds(100), 0, 0);
    let mut seqs: HashMap<(Mode, u32), i64> = HashMap::new();
    for transaction in 0..40 {
        now += millis(10);
        evidence.produced.push(Produced::Began { producer: 9, transaction, at: now });
        evidence.ledger.push((9, transaction));
        now += millis(1);
        let contents = shape.transaction(9, transaction);
        let ids = (id + 1..).take(contents.len()).collect();
        evidence.produced.push(Produced::Committed { producer: 9, transaction, at: now, ids });
        for content in contents {
            let key = content.key.as_ref().map(|key| u32::try_from(key.len() % 2).unwrap());
            let partition = content.partition.or(key).unwrap();
            let seq = seqs.entry((content.mode, partition)).or_default();
            *seq += 1;
            (now, id, call) = (now + 10, id + 1, call + 1);
            let is_poison = shape.is_poison(content.name);
            let handling = Handling {
                at: now,
                process: if content.mode == Mode::Leased { LEASED } else { TRANSACTIONAL },
                call,
                partition,
                seq: *seq,
                id,
                name: Some(content.name),
                digest: content.digest(),
                fate: if is_poison { Fate::Rejected } else { Fate::Done },
            };
            if is_poison {
                evidence.dead.push(letter(content.mode, &handling, Some((handling.process, call))));
            }
            match content.mode {
                Mode::Leased => evidence.handled.push(handling),
                Mode::Transactional if is_poison => {
                    evidence.rejected.insert((TRANSACTIONAL, call, content.name));
                }
                Mode::Transactional => evidence.effects.push(handling),
            }
        }
    }
    evidence
}

/// A dead letter of what a handler was given.
fn letter(mode: Mode, of: &Handling, call: Option<(u32, u64)>) -> DeadLetter {
    let Handling { partition, seq, id, name, digest, .. } = *of;
    DeadLetter { mode, partition, seq, id, name, digest, call }
}

/// Nobody knows what ids there are: no producer lived to say so.
fn forget_ids(evidence: &mut Evidence) {
    evidence.produced.retain(|line| !matches!(line, Produced::Committed { .. }));
}

/// The verdict on what was made of it, but for the words.
fn after(spoil: impl FnOnce(&mut Evidence)) -> Verdict {
    let mut evidence = well();
    spoil(&mut evidence);
    Verdict { findings: Vec::new(), ..judge(&evidence) }
}

/// All is well, but for this.
fn but(change: impl FnOnce(&mut Verdict)) -> Verdict {
    let mut verdict = after(|_| ());
    change(&mut verdict);
    verdict
}

/// A message in the middle that was done.
fn some(handlings: &[Handling]) -> usize {
    (handlings.len() / 2..).find(|place| handlings[*place].fate == Fate::Done).unwrap()
}

fn kill(process: u32, from: u64) -> Fault {
    Fault::of_one("a kill", process, millis(500), from, from)
}

#[test]
fn what_is_well_is_found_well() {
    let verdict = after(|_| ());
    assert!(verdict.is_good(), "{:?}", judge(&well()).findings);
    assert!(verdict.messages > 100, "{verdict:?}");
    assert!(!well().dead.is_empty(), "no poison: take another seed");
    assert_eq!(missing(&well()), 0);
}

#[test]
fn what_nobody_handled_is_lost() {
    let verdict = after(|evidence| {
        let last = evidence.handled.iter().rposition(|handling| handling.fate == Fate::Done).unwrap();
        let partition = evidence.handled[last].partition;
        let is_last = evidence.handled[last + 1..].iter().all(|handling| handling.partition != partition);
        assert!(is_last, "take another seed");
        evidence.handled.remove(last);
        assert_eq!(missing(evidence), 1);
    });
    assert_eq!(verdict, but(|v| v.lost = 1));
    let effects = after(|evidence| {
        evidence.effects.pop();
    });
    assert_eq!(effects, but(|v| v.lost = 1));
}

#[test]
fn a_commit_that_was_answered_and_is_gone_is_lost_and_its_messages_are_phantoms() {
    let verdict = after(|evidence| {
        evidence.ledger.pop();
    });
    assert_eq!(verdict.lost, 1);
    assert!(verdict.phantom > 0, "{verdict:?}");
}

#[test]
fn what_was_undone_and_is_there_is_a_phantom() {
    let verdict = after(|evidence| evidence.produced.push(Produced::Undone { producer: 9, transaction: 3 }));
    assert_eq!(verdict, but(|v| v.phantom = 1));
}

#[test]
fn an_unknown_outcome_is_what_the_ledger_says() {
    let verdict = after(|evidence| {
        evidence.produced.retain(|line| !matches!(line, Produced::Committed { transaction: 7, .. }));
    });
    assert_eq!(verdict, but(|_| ()));
}

#[test]
fn a_second_effect_is_a_duplicate_whatever_happened() {
    let verdict = after(|evidence| {
        let place = some(&evidence.effects);
        let again = evidence.effects[place].clone();
        evidence.faults.push(kill(TRANSACTIONAL, again.at));
        evidence.effects.push(again);
    });
    let all = (verdict.transactional_duplicates, verdict.duplicates, verdict.unexplained_duplicates);
    assert_eq!(all, (1, 1, 1));
}

#[test]
fn a_message_that_comes_again_needs_a_reason() {
    let again = |evidence: &mut Evidence| {
        let place = some(&evidence.handled);
        let before = evidence.handled[place].clone();
        evidence.handled.push(Handling { at: before.at + 5, call: 10_000, process: AGAIN, ..before.clone() });
        before
    };
    let unexplained = after(|evidence| {
        again(evidence);
    });
    assert_eq!(unexplained, but(|v| (v.duplicates, v.unexplained_duplicates) = (1, 1)));
    let explained = after(|evidence| {
        let before = again(evidence);
        evidence.faults.push(kill(LEASED, before.at + 1));
    });
    assert_eq!((explained.duplicates, explained.unexplained_duplicates), (1, 0));
    // The lease that it was handled under was lost before that.
    let explained = after(|evidence| {
        let before = again(evidence);
        evidence.faults.push(Fault { process: None, ..kill(LEASED, before.at - LEASE) });
    });
    assert_eq!((explained.duplicates, explained.unexplained_duplicates), (1, 0));
    // Who handles it again was away while others went on.
    let explained = after(|evidence| {
        let before = again(evidence);
        evidence.faults.push(Fault { until: before.at + 4, ..kill(AGAIN, before.at - 10) });
    });
    assert_eq!((explained.duplicates, explained.unexplained_duplicates), (1, 0));
    // A fault of another process, or of another time, is none.
    for fault in [
        |before: &Handling| kill(77, before.at + 1),
        |before: &Handling| kill(LEASED, before.at + 6),
        |before: &Handling| kill(AGAIN, before.at + 1),
        |before: &Handling| kill(AGAIN, before.at - LEASE),
        |before: &Handling| kill(LEASED, before.at - LEASE - 1),
    ] {
        let verdict = after(|evidence| {
            let before = again(evidence);
            evidence.faults.push(fault(&before));
        });
        assert_eq!(verdict.unexplained_duplicates, 1);
    }
}

#[test]
fn a_fault_of_one_partition_or_of_some_moments_explains_nothing_else() {
    let again = |later, fault: &dyn Fn(&Handling) -> Fault| {
        let verdict = after(|evidence| {
            let before = evidence.handled[some(&evidence.handled)].clone();
            evidence.faults.push(fault(&before));
            let at = before.at + later;
            evidence.handled.push(Handling { at, call: 10_000, process: AGAIN, ..before });
        });
        verdict.unexplained_duplicates
    };
    let slow = |before: &Handling, partition| Fault {
        place: Some((Mode::Leased, partition)),
        recovery: 0,
        ..kill(before.process, before.at)
    };
    assert_eq!(again(5, &|before| slow(before, before.partition)), 0);
    assert_eq!(again(5, &|before| slow(before, before.partition + 1)), 1);
    let cuts = |before: &Handling, moments| Fault {
        moments,
        ..Fault::of_all("cuts", before.at - seconds(1), before.at + seconds(1))
    };
    assert_eq!(again(seconds(1), &|before| cuts(before, vec![before.at - LEASE - 1, before.at + LEASE])), 0);
    assert_eq!(
        again(seconds(1), &|before| cuts(before, vec![before.at - LEASE - 1, before.at + LEASE + 1])),
        1
    );
}

#[test]
fn what_only_a_process_itself_explains_is_counted() {
    let again = |deeds: &[u32]| {
        after(|evidence| {
            let before = evidence.handled[some(&evidence.handled)].clone();
            evidence.faults.push(Fault { is_own: true, recovery: 0, ..kill(LEASED, before.at) });
            evidence.faults.extend(deeds.iter().map(|process| kill(*process, before.at)));
            evidence.handled.push(Handling { at: before.at + 5, call: 10_000, process: AGAIN, ..before });
        })
    };
    assert_eq!((again(&[]).unexplained_duplicates, again(&[]).self_excused), (0, 1));
    assert_eq!((again(&[77]).unexplained_duplicates, again(&[77]).self_excused), (0, 1));
    assert_eq!((again(&[LEASED]).unexplained_duplicates, again(&[LEASED]).self_excused), (0, 0));
}

#[test]
fn what_failed_comes_again_without_another_reason() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        let before = evidence.handled[place].clone();
        evidence.handled[place].fate = Fate::Failed;
        evidence.handled.push(Handling { at: before.at + 5, call: 10_000, ..before });
    });
    assert_eq!(verdict, but(|v| v.duplicates = 1));
}

#[test]
fn what_failed_and_never_comes_again_is_lost() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        evidence.handled[place].fate = Fate::Failed;
        assert_eq!(missing(evidence), 1);
    });
    // And others were given what is behind it.
    assert_eq!(verdict, but(|v| (v.lost, v.reordered) = (1, 1)));
    // It was done afterwards; or before, by somebody who had overtaken the one that failed: at least once.
    let done = |done_at, is_disturbed: bool| {
        let verdict = after(|evidence| {
            let place = some(&evidence.handled);
            let done = evidence.handled[place].clone();
            if is_disturbed {
                evidence.faults.push(kill(LEASED, done.at));
            }
            evidence.handled[place].fate = Fate::Failed;
            let at = done.at.checked_add_signed(done_at).unwrap();
            evidence.handled.push(Handling { at, call: 10_000, process: AGAIN, ..done });
        });
        verdict.lost
    };
    assert_eq!((done(5, false), done(5, true), done(-5, true)), (0, 0, 0));
    // Whoever was done before was overtaken itself, and what it settled was not to count.
    assert_eq!(done(-5, false), 1);
}

#[test]
fn a_rejection_that_nobody_knows_of_is_lost_though_it_was_done_before() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        let before = evidence.handled[place].clone();
        evidence.faults.push(kill(LEASED, before.at));
        let (at, fate) = (before.at + 5, Fate::Rejected);
        evidence.handled.push(Handling { at, fate, call: 10_000, process: AGAIN, ..before });
        assert_eq!(missing(evidence), 1);
    });
    assert_eq!(verdict.lost, 1);
}

#[test]
fn a_fault_excuses_what_was_in_hand_and_not_what_was_settled_long_before() {
    let again = |from: u64, fault: fn(u64) -> Fault, process: u32| {
        after(|evidence| {
            let end = evidence.handled.last().unwrap().at + from;
            evidence.faults.push(fault(end));
            let done = evidence.handled.iter().filter(|handling| handling.fate == Fate::Done);
            let again = done.zip(1..).map(|(before, number)| Handling {
                at: end + seconds(2) + number,
                process,
                call: 10_000 + number,
                ..before.clone()
            });
            let again: Vec<_> = again.collect();
            evidence.handled.extend(again);
        })
    };
    let crash = |from| Fault { forgets: true, ..Fault::of_all("a crash", from, from + seconds(1)) };
    let reset = |from| Fault::of_all("a reset", from, from + seconds(1));
    // The cursor goes back to the very beginning, a minute after all was settled.
    for verdict in [again(seconds(60), |from| kill(LEASED, from), AGAIN), again(seconds(60), crash, LEASED)] {
        assert!(verdict.duplicates > 50, "{verdict:?}");
        assert_eq!(verdict.unexplained_duplicates, verdict.duplicates);
    }
    // Or by as much as may not have been on the disk.
    let verdict = again(millis(900), crash, LEASED);
    assert!(verdict.unexplained_duplicates < verdict.duplicates, "{verdict:?}");
    assert!(verdict.unexplained_duplicates > 0, "{verdict:?}");
    // But a server that goes on forgets nothing.
    let verdict = again(millis(900), reset, LEASED);
    assert_eq!(verdict.unexplained_duplicates, verdict.duplicates);
}

#[test]
fn a_kill_excuses_nothing_that_its_process_had_gone_on_behind() {
    let verdict = |is_of_all: bool, calls: u64| {
        after(|evidence| {
            let place = some(&evidence.handled);
            let before = evidence.handled[place].clone();
            let next =
                evidence.handled[place + 1..].iter_mut().find(|next| next.partition == before.partition);
            let next = next.unwrap();
            next.call = before.call + calls;
            let killed = next.at + 1;
            let fault = kill(LEASED, killed);
            evidence.faults.push(if is_of_all { Fault { process: None, ..fault } } else { fault });
            evidence.handled.push(Handling { at: killed + 1, call: 10_000, process: AGAIN, ..before });
        })
    };
    assert_eq!(verdict(false, 1).unexplained_duplicates, 1);
    // It was the same call, which is settled at its end; or the server crashed, which may have forgotten.
    assert_eq!(verdict(false, 0).unexplained_duplicates, 0);
    assert_eq!(verdict(true, 1).unexplained_duplicates, 0);
}

#[test]
fn who_lost_its_lease_without_knowing_goes_on_until_it_is_over() {
    let verdict = |from: i64, until: i64| {
        after(|evidence| {
            let place = some(&evidence.handled);
            let before = evidence.handled[place].clone();
            let again = Handling { at: before.at + 500, call: 10_000, process: AGAIN, ..before.clone() };
            let time = |ago: i64| again.at.checked_add_signed(ago).unwrap();
            // Not one that may have kept the first settlement away.
            evidence.leases.insert(LEASED, 0);
            evidence.faults.push(Fault { until: time(until), ..kill(AGAIN, time(from)) });
            evidence.handled.push(again);
        })
    };
    let lease = i64::try_from(LEASE).unwrap();
    assert_eq!(verdict(-500, -lease).unexplained_duplicates, 0);
    assert_eq!(verdict(-500, 10).unexplained_duplicates, 0);
    // It began after others had handled it; or the lease that was lost is long over.
    assert_eq!(verdict(-499, -lease).unexplained_duplicates, 1);
    assert_eq!(verdict(-500, -lease - 1).unexplained_duplicates, 1);
}

#[test]
fn only_a_call_that_outlives_its_lease_excuses_what_it_was_done_with() {
    let again = |evidence: &mut Evidence| {
        let before = evidence.handled[some(&evidence.handled)].clone();
        let call = (before.process, before.call);
        evidence.handled.push(Handling { at: before.at + 5, call: 10_000, process: AGAIN, ..before });
        call
    };
    let excused = after(|evidence| {
        let call = again(evidence);
        evidence.abandoned.insert(call);
    });
    assert_eq!(excused, but(|v| v.duplicates = 1));
    let other = after(|evidence| {
        let (process, call) = again(evidence);
        evidence.abandoned.insert((process, call + 10_000));
    });
    assert_eq!(other.unexplained_duplicates, 1);
}

#[test]
fn five_findings_of_each_kind_are_told_and_all_are_counted() {
    let mut evidence = well();
    forget_ids(&mut evidence);
    evidence.effects.iter_mut().for_each(|effect| effect.id = 1);
    evidence.handled.iter_mut().for_each(|handling| handling.digest ^= 1);
    let verdict = judge(&evidence);
    assert!(verdict.reordered > 50 && verdict.cross_wired > 50, "{verdict:?}");
    let told = |word: &str| verdict.findings.iter().filter(|finding| finding.contains(word)).count();
    assert_eq!((told("id 1 is"), told("not as it was sent")), (5, 5));
}

#[test]
fn a_mode_in_which_nothing_was_delivered_is_noticed() {
    let mut evidence = well();
    assert_eq!(silent_modes(&evidence), []);
    evidence.handled.clear();
    assert_eq!(silent_modes(&evidence), [Mode::Leased]);
    evidence.effects.clear();
    assert_eq!(silent_modes(&evidence), Mode::ALL);
    evidence.shape.queues.remove(0);
    assert_eq!(silent_modes(&evidence), [Mode::Transactional]);
}

#[test]
fn what_is_handled_out_of_order_is_found() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        let (at, partition) = (evidence.handled[place].at, evidence.handled[place].partition);
        let next = evidence.handled[place + 1..].iter_mut().find(|next| next.partition == partition).unwrap();
        next.at = at - 1;
    });
    assert_eq!(verdict.reordered, 1);
    let verdict = after(|evidence| {
        let place = some(&evidence.effects);
        let partition = evidence.effects[place].partition;
        let next = (place + 1..).find(|next| evidence.effects[*next].partition == partition).unwrap();
        evidence.effects.swap(place, next);
    });
    assert!(verdict.reordered > 0, "{verdict:?}");
}

#[test]
fn nobody_is_given_what_is_behind_a_message_that_failed() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        let done = evidence.handled[place].clone();
        evidence.handled[place].fate = Fate::Failed;
        let end = evidence.handled.last().unwrap().at;
        evidence.handled.push(Handling { at: end + 1, call: 10_000, ..done });
    });
    assert_eq!((verdict.reordered, verdict.unexplained_duplicates, verdict.lost), (1, 0, 0));
}

#[test]
fn seqs_against_the_order_of_commits_are_found() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        let handled = &mut evidence.handled;
        let first = handled[place].clone();
        let is_later = |later: &Handling| {
            let (before, after) = (first.name.unwrap(), later.name.unwrap());
            later.partition == first.partition
                && after.transaction > before.transaction
                && later.fate == Fate::Done
        };
        let later = (place..handled.len()).find(|later| is_later(&handled[*later])).unwrap();
        // They change places, whole.
        let (name, digest, id) = (handled[later].name, handled[later].digest, handled[later].id);
        (handled[place].name, handled[place].digest, handled[place].id) = (name, digest, id);
        (handled[later].name, handled[later].digest, handled[later].id) =
            (first.name, first.digest, first.id);
    });
    assert!(verdict.reordered > 0, "{verdict:?}");
    assert_eq!((verdict.lost, verdict.cross_wired, verdict.unexplained_duplicates), (0, 0, 0));
}

#[test]
fn a_seq_or_an_id_with_two_meanings_is_found() {
    let verdict = after(|evidence| {
        forget_ids(evidence);
        let place = some(&evidence.handled);
        let before = evidence.handled[place].clone();
        evidence.faults.push(kill(LEASED, before.at));
        evidence.handled.push(Handling { id: before.id + 10_000, at: before.at + 1, call: 10_000, ..before });
    });
    assert_eq!(verdict.reordered, 1);
    // In another mode and another partition, too.
    let verdict = after(|evidence| {
        forget_ids(evidence);
        evidence.effects.last_mut().unwrap().id = evidence.handled[some(&evidence.handled)].id;
    });
    assert_eq!(verdict, but(|v| v.reordered = 1));
}

#[test]
fn an_id_that_its_producer_does_not_know_is_found() {
    let delivered = after(|evidence| evidence.effects.last_mut().unwrap().id += 10_000);
    assert_eq!(delivered, but(|v| v.cross_wired = 1));
    let dead = after(|evidence| evidence.dead.last_mut().unwrap().id += 10_000);
    assert_eq!(dead, but(|v| v.cross_wired = 1));
    let returned = |change: fn(&mut Vec<i64>)| {
        after(|evidence| {
            let ids = evidence.produced.iter_mut().find_map(|line| match line {
                Produced::Committed { ids, .. } if ids.len() > 2 => Some(ids),
                _ => None,
            });
            change(ids.unwrap());
        })
    };
    assert_eq!(returned(|ids| ids.swap(0, 1)), but(|v| v.cross_wired = 2));
    assert_eq!(returned(|ids| ids.truncate(2)), but(|v| v.cross_wired = 1));
    assert_eq!(returned(Vec::clear), but(|v| v.cross_wired = 1));
    // One id for two of them: it has two meanings, and one of them comes with another.
    let twice = returned(|ids| ids[0] = ids[1]);
    assert_eq!(twice, but(|v| (v.cross_wired, v.reordered) = (1, 1)));
}

#[test]
fn what_is_not_as_it_was_sent_is_cross_wired() {
    let verdict = after(|evidence| {
        let place = some(&evidence.effects);
        evidence.effects[place].digest ^= 1;
    });
    assert_eq!(verdict.cross_wired, 1);
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        evidence.handled[place].name = None;
    });
    assert_eq!((verdict.cross_wired, verdict.lost), (1, 1));
}

#[test]
fn a_rejection_that_others_have_overtaken_is_a_stale_settle() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        evidence.handled[place].fate = Fate::Rejected;
        let before = evidence.handled[place].clone();
        evidence.dead.push(letter(Mode::Leased, &before, Some((before.process, before.call))));
        evidence.faults.push(kill(LEASED, before.at));
        let fate = Fate::Done;
        evidence.handled.push(Handling { at: before.at + 5, call: 10_000, process: AGAIN, fate, ..before });
    });
    assert_eq!((verdict.stale_settles, verdict.phantom, verdict.lost), (1, 0, 0));
}

#[test]
fn who_was_overtaken_and_goes_on_with_what_it_has_settles_nothing() {
    // A call that began before the one which rejected the message comes to it after that, and rejects it, too, or is done with it.
    for fate in [Fate::Rejected, Fate::Done] {
        let verdict = after(|evidence| {
            let place = some(&evidence.handled);
            let own = evidence.handled[place].partition;
            let next = (place + 1..).find(|next| evidence.handled[*next].partition == own).unwrap();
            let (first, second) = (evidence.handled[place].clone(), evidence.handled[next].clone());
            evidence.handled[next].fate = Fate::Rejected;
            evidence.dead.retain(|letter| letter.id != second.id);
            evidence.dead.push(letter(Mode::Leased, &second, Some((second.process, second.call))));
            let zombie = Handling { process: AGAIN, call: 10_000, ..first };
            let early = Handling { at: zombie.at - 1, ..zombie.clone() };
            let (seq, id, name, digest) = (second.seq, second.id, second.name, second.digest);
            let late = Handling { at: second.at + 5, seq, id, name, digest, fate, ..zombie };
            evidence.faults.push(Fault::of_all("a jump of the clock", early.at, late.at));
            evidence.handled.extend([early, late]);
        });
        assert_eq!((verdict.stale_settles, verdict.lost, verdict.phantom), (0, 0, 0));
    }
}

#[test]
fn a_dead_letter_that_nobody_rejected_is_a_phantom() {
    // A handler was done with it, or failed, or nobody was given it.
    for (fate, lost_and_passed) in [(Fate::Done, 0), (Fate::Failed, 1)] {
        let verdict = after(|evidence| {
            let place = some(&evidence.handled);
            evidence.handled[place].fate = fate;
            let last = evidence.handled[place].clone();
            evidence.dead.push(letter(Mode::Leased, &last, Some((last.process, last.call))));
        });
        let wanted = (1, lost_and_passed, lost_and_passed);
        assert_eq!(verdict, but(|v| (v.phantom, v.lost, v.reordered) = wanted));
    }
    for names_its_call in [false, true] {
        let verdict = after(|evidence| {
            let effect = evidence.effects.remove(some(&evidence.effects));
            let call = names_its_call.then_some((effect.process, effect.call));
            evidence.dead.push(letter(Mode::Transactional, &effect, call));
        });
        assert_eq!(verdict, but(|v| v.phantom = 1));
    }
    // All of them.
    let verdict = after(|evidence| {
        for effect in std::mem::take(&mut evidence.effects) {
            evidence.dead.push(letter(Mode::Transactional, &effect, None));
        }
    });
    assert!(verdict.phantom > 10, "{verdict:?}");
    // A call that rejected another message is none; one that rejected several is one for each.
    let whole_call = |rejected: usize| {
        after(|evidence| {
            for number in 0..2 {
                let effect = evidence.effects.remove(some(&evidence.effects));
                evidence.dead.push(letter(Mode::Transactional, &effect, Some((TRANSACTIONAL, 10_000))));
                if number < rejected {
                    evidence.rejected.insert((TRANSACTIONAL, 10_000, effect.name.unwrap()));
                }
            }
        })
    };
    assert_eq!(whole_call(1), but(|v| v.phantom = 1));
    assert_eq!(whole_call(2), but(|_| ()));
}

#[test]
fn a_dead_letter_that_is_there_twice_is_a_duplicate() {
    let twice = |mode| {
        after(|evidence| {
            let letter = evidence.dead.iter().find(|letter| letter.mode == mode).expect("take another seed");
            evidence.dead.push(letter.clone());
        })
    };
    assert_eq!(twice(Mode::Leased), but(|v| v.unexplained_duplicates = 1));
    let transactional = but(|v| {
        (v.transactional_duplicates, v.duplicates, v.unexplained_duplicates) = (1, 1, 1);
    });
    assert_eq!(twice(Mode::Transactional), transactional);
}

#[test]
fn what_was_rejected_must_be_a_dead_letter_and_have_no_effect() {
    let verdict = after(|evidence| {
        let place = some(&evidence.handled);
        evidence.handled[place].fate = Fate::Rejected;
    });
    assert_eq!(verdict, but(|v| v.lost = 1));
    let verdict = after(|evidence| {
        let effect = evidence.effects[some(&evidence.effects)].clone();
        evidence.rejected.insert((TRANSACTIONAL, effect.call, effect.name.unwrap()));
        evidence.dead.push(letter(Mode::Transactional, &effect, Some((TRANSACTIONAL, effect.call))));
    });
    assert_eq!(verdict, but(|v| v.phantom = 1));
}

#[test]
fn who_waits_for_long_has_a_fault_to_blame_or_is_stalled() {
    let late = |evidence: &mut Evidence| {
        let last = evidence.effects.len() - 1;
        evidence.effects[last].at += seconds(6);
        evidence.effects[last].at
    };
    let stalled = after(|evidence| {
        late(evidence);
    });
    assert_eq!(stalled, but(|v| v.stalls = 1));
    let crash = |from| Fault::of_all("a crash", from, from + seconds(1));
    let blamed = after(|evidence| {
        let at = late(evidence);
        evidence.faults.push(crash(at - seconds(5)));
    });
    assert_eq!((blamed.stalls, blamed.recovery_p100_ms), (0, 4000));
    // Too long after it.
    let stalled = after(|evidence| {
        let at = late(evidence);
        evidence.effects.last_mut().unwrap().at += seconds(2);
        evidence.faults.push(crash(at - seconds(5)));
    });
    assert_eq!((stalled.stalls, stalled.recovery_p100_ms), (1, 6000));
}

#[test]
fn recovery_from_a_kill_counts_from_the_end_of_its_lease() {
    let killed = |took, is_hampered| {
        after(|evidence| {
            let last = evidence.effects.len() - 1;
            let partition = evidence.effects[last].partition;
            let before =
                evidence.effects[..last].iter().rfind(|effect| effect.partition == partition).unwrap().at;
            let Some(&Produced::Committed { at, .. }) = evidence.produced.last() else { unreachable!() };
            let killed = before.max(at) + 1;
            evidence.faults.push(kill(TRANSACTIONAL, killed));
            evidence.effects[last].at = killed + took;
            if is_hampered {
                // By somebody else, but in this partition; and by this process in another one, for some of the same time.
                let hung = |process, partition, from, until| Fault {
                    place: Some((Mode::Transactional, partition)),
                    recovery: 0,
                    ..Fault::of_one("a handler that hung", process, 0, killed + from, killed + until)
                };
                evidence.faults.push(hung(77, partition, millis(600), millis(900)));
                evidence.faults.push(hung(TRANSACTIONAL, 9, millis(800), millis(1850)));
                // What others do elsewhere, and what does not take long there, is no excuse.
                evidence.faults.push(hung(77, 9, millis(1000), millis(3000)));
                evidence.faults.push(hung(TRANSACTIONAL, 9, millis(2000), millis(2900)));
            }
        })
    };
    let verdict = killed(millis(700), false);
    assert_eq!((verdict.stalls, verdict.recovery_p100_ms), (0, 200));
    assert!(verdict.recoveries > 0);
    assert_eq!(killed(millis(3000), false).stalls, 1);
    // What handlers took is not counted.
    let hampered = killed(millis(3700), true);
    assert_eq!((hampered.stalls, hampered.recovery_p100_ms), (0, 1950));
    assert_eq!(killed(millis(3800), true).stalls, 1);
}

#[test]
fn who_is_paused_is_taken_over_from_before_it_goes_on() {
    let paused = |others_since: fn(u64) -> Option<u64>| {
        after(|evidence| {
            let last = evidence.effects.last_mut().unwrap();
            let from = last.at;
            // It goes on itself, seven seconds later.
            last.at += seconds(7);
            let pause = Fault::of_one("a pause", TRANSACTIONAL, millis(500), from, from + seconds(7) - 1);
            // It has noticed that it was away.
            let starved = Fault { others_since: Some(from), lease: 0, recovery: 0, ..pause.clone() };
            evidence.faults.push(starved);
            evidence.faults.push(Fault { others_since: others_since(from), recovery: seconds(5), ..pause });
        })
    };
    assert_eq!(paused(|_| None).stalls, 0);
    assert_eq!(paused(Some).stalls, 1);
}

#[test]
fn what_one_process_is_busy_with_keeps_no_other_waiting() {
    let late = |process, partition| {
        after(|evidence| {
            let last = evidence.effects.last_mut().unwrap();
            let (from, own) = (last.at, last.partition);
            last.at += seconds(6);
            let place = Some((Mode::Transactional, if partition == 0 { own } else { own + partition }));
            let fault = Fault::of_one("a handler that hung", process, 0, from, from + seconds(3));
            evidence.faults.push(Fault { place, recovery: 0, ..fault });
        })
    };
    assert_eq!(late(TRANSACTIONAL, 1).stalls, 0);
    assert_eq!(late(77, 0).stalls, 0);
    assert_eq!(late(77, 1).stalls, 1);
}

#[test]
fn only_something_done_to_everybody_excuses_what_a_process_could_not_do() {
    let complaint = |faults: Vec<Fault>| {
        let mut evidence = well();
        let what = "it could not".to_owned();
        evidence.complaints.push(Complaint { from: seconds(20), until: seconds(21), what });
        evidence.faults = faults;
        without_excuse(&evidence).count()
    };
    let crash = |from, until| Fault::of_all("a crash", seconds(from), seconds(until));
    assert_eq!(complaint(vec![]), 1);
    assert_eq!(complaint(vec![kill(3, seconds(20))]), 1);
    assert_eq!(complaint(vec![crash(10, 14)]), 1);
    assert_eq!(complaint(vec![crash(22, 23)]), 1);
    assert_eq!(complaint(vec![crash(10, 15)]), 0);
    assert_eq!(complaint(vec![crash(21, 30)]), 0);
}
