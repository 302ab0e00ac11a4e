//! Stamps cases for databases and for the modes of handling.
//!
//! The tests of a database are in a module of its name, by which `cargo xtask test --db` selects them; those of a mode are
//! in a module of its name in there.

/// Stamps cases for every database that has a store: **the list is here**. A database is switched on by its line.
///
/// A case is a function of a [`Server`](crate::fresh::Server), and of a [`Mode`](crate::modes::Mode) if there are modes in
/// the brackets before it; it is then stamped for each of them. What `tokio::test` is to be told follows a case's name, in
/// parentheses. A case that cannot hold on a database says why, and is listed there as ignored, for that reason:
///
/// ```text
/// cases! {
///     [leased, transactional]:
///         everything_is_delivered,
///         many_write_at_once (flavor = "multi_thread") except(sqlite = "one writer at a time is its nature");
///     []: it_is_stamped_once_for_each_database;
/// }
/// ```
macro_rules! cases {
    (@all $($cases:tt)+) => {
        $crate::cases::cases!(@on postgres Postgres $($cases)+);
        $crate::cases::cases!(@on sqlite Sqlite $($cases)+);
        $crate::cases::cases!(@on mariadb Mariadb $($cases)+);
        $crate::cases::cases!(@on mysql Mysql $($cases)+);
    };

    (@on $db:ident $server:ident
        $([$($mode:ident),*]: $($case:ident $(($($how:tt)+))? $(except($($other:ident = $why:literal),+))?),+;)+
    ) => {
        mod $db {
            $($crate::cases::cases!(@mode plain [$($mode)*] $db $server
                $($case [$($($how)+)?] [$($($other = $why)+)?])+);)+
            mod leased {
                $($crate::cases::cases!(@mode leased [$($mode)*] $db $server
                    $($case [$($($how)+)?] [$($($other = $why)+)?])+);)+
            }
            mod transactional {
                $($crate::cases::cases!(@mode transactional [$($mode)*] $db $server
                    $($case [$($($how)+)?] [$($($other = $why)+)?])+);)+
            }
            mod batch {
                $($crate::cases::cases!(@mode batch [$($mode)*] $db $server
                    $($case [$($($how)+)?] [$($($other = $why)+)?])+);)+
            }
        }
    };

    // Is this mode among those in the brackets?
    (@mode plain [] $($rest:tt)+) => { $crate::cases::cases!(@each plain $($rest)+); };
    (@mode leased [leased $($more:ident)*] $($rest:tt)+) => { $crate::cases::cases!(@each Leased $($rest)+); };
    (@mode transactional [transactional $($more:ident)*] $($rest:tt)+) => {
        $crate::cases::cases!(@each Transactional $($rest)+);
    };
    (@mode batch [batch $($more:ident)*] $($rest:tt)+) => { $crate::cases::cases!(@each Batch $($rest)+); };
    (@mode plain [$($other:ident)+] $($rest:tt)+) => {};
    (@mode $mode:ident [$other:ident $($more:ident)*] $($rest:tt)+) => {
        $crate::cases::cases!(@mode $mode [$($more)*] $($rest)+);
    };
    (@mode $mode:ident [] $($rest:tt)+) => {};

    (@each $mode:ident $db:ident $server:ident $($case:ident $how:tt $except:tt)+) => {
        $($crate::cases::cases!(@stamp $mode $db $server $case $how $except);)+
    };

    // Is this database among the exceptions?
    (@stamp $mode:ident postgres $server:ident $case:ident $how:tt [postgres = $why:literal $($more:tt)*]) => {
        $crate::cases::cases!(@except $case $why);
    };
    (@stamp $mode:ident sqlite $server:ident $case:ident $how:tt [sqlite = $why:literal $($more:tt)*]) => {
        $crate::cases::cases!(@except $case $why);
    };
    (@stamp $mode:ident mariadb $server:ident $case:ident $how:tt [mariadb = $why:literal $($more:tt)*]) => {
        $crate::cases::cases!(@except $case $why);
    };
    (@stamp $mode:ident mysql $server:ident $case:ident $how:tt [mysql = $why:literal $($more:tt)*]) => {
        $crate::cases::cases!(@except $case $why);
    };
    (@stamp $mode:ident $db:ident $server:ident $case:ident $how:tt [$other:ident = $why:literal $($more:tt)*]) => {
        $crate::cases::cases!(@stamp $mode $db $server $case $how [$($more)*]);
    };
    (@stamp plain $db:ident $server:ident $case:ident [$($how:tt)*] []) => {
        #[tokio::test($($how)*)]
        async fn $case() {
            super::$case::<$crate::fresh::servers::$server>().await;
        }
    };
    (@stamp $mode:ident $db:ident $server:ident $case:ident [$($how:tt)*] []) => {
        #[tokio::test($($how)*)]
        async fn $case() {
            super::super::$case::<$crate::fresh::servers::$server>($crate::modes::Mode::$mode).await;
        }
    };

    (@except $case:ident $why:literal) => {
        #[test]
        #[ignore = $why]
        fn $case() {}
    };

    ($($cases:tt)+) => { $crate::cases::cases!(@all $($cases)+); };
}
pub(crate) use cases;

/// Stamps cases that do not depend on SQL, each for the one database that is named. They are in a module `spread`. Not for MySQL,
/// which a run may do without.
///
/// ```text
/// spread! {
///     postgres => { []: a_collector_says_what_came_instead; }
///     sqlite => { [leased]: a_handler_that_blocks_is_settled_when_it_returns; }
/// }
/// ```
macro_rules! spread {
    ($($db:ident => { $($cases:tt)+ })+) => {
        mod spread {
            use super::*;
            $($crate::cases::spread!(@on $db $($cases)+);)+
        }
    };
    (@on postgres $($cases:tt)+) => { $crate::cases::cases!(@on postgres Postgres $($cases)+); };
    (@on sqlite $($cases:tt)+) => { $crate::cases::cases!(@on sqlite Sqlite $($cases)+); };
    (@on mariadb $($cases:tt)+) => { $crate::cases::cases!(@on mariadb Mariadb $($cases)+); };
}
pub(crate) use spread;

/// Stamps cases for every database, whether it has a store or not.
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {
        $crate::cases::cases!(@on sqlite Sqlite []: $($case),+;);
        $crate::cases::cases!(@on postgres Postgres []: $($case),+;);
        $crate::cases::cases!(@on mariadb Mariadb []: $($case),+;);
        $crate::cases::cases!(@on mysql Mysql []: $($case),+;);
    };
}
pub(crate) use on_every_database;

/// Stamps tests of one database, functions of a [`Mode`](crate::modes::Mode), for the modes in brackets: each mode in a module
/// of its name, one call a file.
macro_rules! in_modes {
    ($([$($mode:ident),+]: $($test:ident),+;)+) => {
        mod leased { $($crate::cases::in_modes!(@mode leased [$($mode)+] $($test)+);)+ }
        mod transactional { $($crate::cases::in_modes!(@mode transactional [$($mode)+] $($test)+);)+ }
        mod batch { $($crate::cases::in_modes!(@mode batch [$($mode)+] $($test)+);)+ }
    };
    (@mode leased [leased $($more:ident)*] $($test:ident)+) => { $crate::cases::in_modes!(@tests Leased $($test)+); };
    (@mode transactional [transactional $($more:ident)*] $($test:ident)+) => {
        $crate::cases::in_modes!(@tests Transactional $($test)+);
    };
    (@mode batch [batch $($more:ident)*] $($test:ident)+) => { $crate::cases::in_modes!(@tests Batch $($test)+); };
    (@mode $mode:ident [$other:ident $($more:ident)*] $($test:ident)+) => {
        $crate::cases::in_modes!(@mode $mode [$($more)*] $($test)+);
    };
    (@mode $mode:ident [] $($test:ident)+) => {};
    (@tests $mode:ident $($test:ident)+) => {
        $(
            #[tokio::test]
            async fn $test() {
                super::$test($crate::modes::Mode::$mode).await;
            }
        )+
    };
}
pub(crate) use in_modes;
