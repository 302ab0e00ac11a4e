//! The statements of a database: static text in its `sql/` folder, rendered once with the names of the tables.

/// Makes a struct of all statements, by the names of their files.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
macro_rules! statements {
    ($($name:ident),* $(,)?) => {
        /// All statements, by the names of their files.
        pub(super) struct Statements {
            $(pub(super) $name: std::sync::Arc<str>,)*
        }

        impl Statements {
            pub(super) fn render(fill: impl Fn(&str) -> String) -> Self {
                Self { $($name: fill(include_str!(concat!("sql/", stringify!($name), ".sql"))).into(),)* }
            }
        }
    };
}
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
pub(crate) use statements;
