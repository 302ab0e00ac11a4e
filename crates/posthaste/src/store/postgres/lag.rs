//! How far the partitions are.

use super::{PostgresStore, query};
use crate::store::{
    READER, Result,
    lag::{Lagging, WINDOW, lagging},
};

pub(super) async fn lag(store: &PostgresStore) -> Result<Lagging> {
    lagging(&store.fetch(query(&store.sql().lag).bind(READER).bind(WINDOW)).await?)
}
