//! What many databases start with.

use std::hash::{DefaultHasher, Hash, Hasher};

/// Tables and rows that many test databases start with.
#[derive(Debug, Clone)]
pub struct Template {
    name: String,
}

impl Template {
    /// A template is identified by its name and by the SQL that it is prepared with: other SQL is another template, so
    /// that a server that outlives a run never serves an outdated one.
    #[must_use]
    pub fn new(name: &str, sql: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        sql.hash(&mut hasher);
        Self { name: format!("posthaste_template_{name}_{:016x}", hasher.finish()) }
    }

    /// The name of its database.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn other_sql_is_another_template() {
        let (one, same, other) = (Template::new("a", "x"), Template::new("a", "x"), Template::new("a", "y"));
        assert_eq!(one.name(), same.name());
        assert_ne!(one.name(), other.name());
    }
}
