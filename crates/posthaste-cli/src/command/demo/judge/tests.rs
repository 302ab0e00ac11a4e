//! Books in which one thing is wrong, and what the judge makes of them.

use super::*;

const fn id(customer: u32, number: u64) -> OrderId {
    OrderId { customer, number }
}

const fn delivery(customer: u32, number: u64) -> Delivery {
    Delivery { order: id(customer, number), by: Process::Main, at: 2_000_000 + number * 1_000 }
}

/// Two customers with four orders each, of which the third was rolled back and the fourth of customer 1 has a declined card.
fn books() -> Books {
    let order = |customer, number, card_is_declined| Order { id: id(customer, number), card_is_declined };
    let committed = vec![
        order(0, 1, false),
        order(0, 2, false),
        order(0, 4, false),
        order(1, 1, false),
        order(1, 2, false),
        order(1, 4, true),
    ];
    Books {
        began: 1_000_000,
        committed_at: committed.iter().map(|order| (order.id, 2_000_000)).collect(),
        committed,
        rolled_back: vec![id(0, 3), id(1, 3)],
        deliveries: vec![delivery(1, 1), delivery(0, 1), delivery(0, 2), delivery(1, 2), delivery(0, 4)],
        dead_letters: 1,
        dead: vec![Some(id(1, 4))],
        kills: 0,
    }
}

/// What is wrong, and nothing else.
fn wrongs(verdict: &Verdict) -> Vec<(&'static str, u64)> {
    let found = [
        ("lost", verdict.lost),
        ("phantom", verdict.phantom),
        ("out of order", verdict.out_of_order),
        ("missing dead letter", verdict.missing_dead_letters),
        ("surplus dead letter", verdict.surplus_dead_letters),
    ];
    found.into_iter().filter(|(_, count)| *count > 0).collect()
}

#[track_caller]
fn assert_found(books: &Books, expected: &[(&'static str, u64)]) {
    let verdict = judge(books);
    assert_eq!((verdict.ok, &*wrongs(&verdict)), (expected.is_empty(), expected), "{verdict:?}");
}

#[test]
fn good_books_are_found_good() {
    let verdict = judge(&books());
    let expected = Verdict {
        ok: true,
        committed: 6,
        rolled_back: 2,
        delivered: 5,
        lost: 0,
        phantom: 0,
        out_of_order: 0,
        duplicates: 0,
        dead_letters: 1,
        // From the beginning to the last delivery it took 1.004 s.
        per_s: 5.0,
        p50_ms: 2.0,
        p99_ms: 4.0,
        kills: 0,
        declined: 1,
        missing_dead_letters: 0,
        surplus_dead_letters: 0,
        by_second: 0,
    };
    assert_eq!(verdict, expected);
}

#[test]
fn no_books_are_good_books() {
    let verdict = judge(&Books::default());
    assert!(verdict.ok);
    assert_eq!((verdict.per_s, verdict.p50_ms, verdict.p99_ms), (0.0, 0.0, 0.0));
}

#[test]
fn an_order_that_was_not_delivered_is_lost() {
    let mut books = books();
    books.deliveries.remove(1);
    assert_found(&books, &[("lost", 1)]);
}

#[test]
fn an_order_that_was_delivered_and_is_not_in_the_table_is_a_phantom() {
    let mut books = books();
    books.deliveries.push(delivery(0, 3));
    assert_found(&books, &[("phantom", 1)]);
    books.deliveries.push(delivery(0, 3));
    assert_found(&books, &[("phantom", 1)]);
    assert_eq!(judge(&books).duplicates, 1);
    books.deliveries.push(delivery(999, 1));
    assert_found(&books, &[("phantom", 2)]);
}

#[test]
fn an_order_that_was_committed_and_is_not_in_the_table_is_lost_even_if_its_message_is_gone_too() {
    let mut books = books();
    books.committed.remove(2);
    books.deliveries.retain(|delivery| delivery.order != id(0, 4));
    assert_found(&books, &[("lost", 1)]);
    assert_eq!(judge(&books).committed, 6, "it was committed");
    // If it was delivered nevertheless, that was one too many.
    books.deliveries.push(delivery(0, 4));
    assert_found(&books, &[("lost", 1), ("phantom", 1)]);
}

#[test]
fn an_order_that_was_rolled_back_and_is_in_the_table_is_a_phantom() {
    let mut books = books();
    books.committed.insert(2, Order { id: id(0, 3), card_is_declined: false });
    books.deliveries.insert(3, delivery(0, 3));
    assert_found(&books, &[("phantom", 1)]);
}

#[test]
fn what_became_of_an_order_whose_commit_gave_no_answer_is_for_the_table_to_say() {
    let mut books = books();
    books.committed_at.pop();
    books.committed_at.remove(1);
    assert_found(&books, &[]);
    books.deliveries.retain(|delivery| delivery.order != id(0, 2));
    assert_found(&books, &[("lost", 1)]);
}

#[test]
fn a_dead_letter_of_an_order_that_is_not_in_the_table_is_a_phantom() {
    for dead in [Some(id(1, 3)), None] {
        let mut books = books();
        books.dead.push(dead);
        assert_found(&books, &[("phantom", 1)]);
    }
}

#[test]
fn a_later_order_that_came_first_is_out_of_order() {
    let mut books = books();
    books.deliveries.swap(1, 2);
    assert_found(&books, &[("out of order", 1)]);
}

#[test]
fn customers_do_not_wait_for_each_other() {
    let mut books = books();
    books.deliveries.swap(0, 1);
    assert_found(&books, &[]);
}

#[test]
fn a_second_delivery_is_a_duplicate_and_no_disorder() {
    let mut books = books();
    let again = Delivery { by: Process::Second, ..delivery(0, 1) };
    books.deliveries.push(again);
    assert_found(&books, &[]);
    let verdict = judge(&books);
    assert_eq!((verdict.duplicates, verdict.delivered, verdict.by_second), (1, 5, 1));
}

#[test]
fn a_rejected_order_that_is_no_dead_letter_is_missed() {
    let mut books = books();
    books.dead.clear();
    books.dead_letters = 0;
    assert_found(&books, &[("missing dead letter", 1)]);
}

#[test]
fn a_dead_letter_of_a_good_order_is_one_too_many() {
    let mut books = books();
    books.dead.push(Some(id(0, 1)));
    books.dead_letters = 2;
    assert_found(&books, &[("surplus dead letter", 1)]);
}

#[test]
fn a_dead_letter_that_is_there_twice_is_one_too_many() {
    let mut books = books();
    books.dead.push(Some(id(1, 4)));
    assert_found(&books, &[("surplus dead letter", 1)]);
}

#[test]
fn the_outboxs_own_count_must_fit_too() {
    let mut books = books();
    books.dead_letters = 2;
    assert!(!judge(&books).ok);
}
