//! The ground that the other cases stand on.

use crate::{
    fresh::{Fresh, Ground},
    stage::run,
};

/// A fresh database is supported, empty, and not the one that another test got.
async fn each_test_has_a_database_of_its_own<S: Ground>() {
    let (first, second) = (Fresh::<S>::empty().await, Fresh::<S>::empty().await);
    for fresh in [&first, &second] {
        assert!(S::version(&fresh.pool).await >= S::OLDEST, "the server is too old");
        assert_eq!(S::count_tables(&fresh.pool).await, 0);
    }
    run(&first.pool, "CREATE TABLE things (id BIGINT PRIMARY KEY)").await;
    assert_eq!(S::count_tables(&first.pool).await, 1);
    assert_eq!(S::count_tables(&second.pool).await, 0);
    first.remove().await;
    second.remove().await;
}

crate::cases::on_every_database!(each_test_has_a_database_of_its_own);
