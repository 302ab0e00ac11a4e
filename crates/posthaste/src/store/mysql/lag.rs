//! How far the partitions are.

use super::{MySqlStore, query};
use crate::store::{
    READER, Result,
    lag::{Lagging, WINDOW, lagging},
};

pub(super) async fn lag(store: &MySqlStore) -> Result<Lagging> {
    let statement = || {
        query(&store.sql().lag).bind(READER).bind(READER).bind(READER).bind(READER).bind(WINDOW).bind(WINDOW)
    };
    lagging(&store.fetch(statement).await?)
}
