//! How far the partitions are.

use super::{SqliteStore, busy::reading, query};
use crate::store::{
    READER, Result,
    lag::{Lagging, WINDOW, lagging},
};

pub(super) async fn lag(store: &SqliteStore) -> Result<Lagging> {
    let rows = reading!(store, conn => async {
        Ok(query(&store.sql().lag).bind(READER).bind(WINDOW).fetch_all(conn).await?)
    })?;
    lagging(&rows)
}
