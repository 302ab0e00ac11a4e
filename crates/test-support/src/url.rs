//! URLs of databases.

/// The URL of another database on the same server.
pub fn with_database(url: &str, name: &str) -> String {
    let (base, options) = url.split_once('?').map_or((url, None), |(base, options)| (base, Some(options)));
    let authority = base.find("://").map_or(0, |at| at + 3);
    let server = base[authority..].find('/').map_or(base, |at| &base[..authority + at]);
    options.map_or_else(|| format!("{server}/{name}"), |options| format!("{server}/{name}?{options}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_database_on_the_same_server_keeps_the_options() {
        assert_eq!(
            with_database("mysql://a@[::1]:1/b?ssl-mode=disabled", "c"),
            "mysql://a@[::1]:1/c?ssl-mode=disabled"
        );
        assert_eq!(with_database("postgres://h", "c"), "postgres://h/c");
    }
}
