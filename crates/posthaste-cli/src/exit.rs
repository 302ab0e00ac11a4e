//! What the exit code of the command says. The same numbers are in `posthaste --help`.

/// It is done, and all is well.
pub const DONE: u8 = 0;
/// It found a problem: with the outbox, or in its way.
pub const PROBLEM: u8 = 1;
/// It was called in a wrong way: with an option, a name or an input that cannot be.
pub const USAGE: u8 = 2;
/// The database is out of reach: it is not there, does not answer, or does not let us in.
pub const OUT_OF_REACH: u8 = 3;
/// It was interrupted before it was done, as shells have it: 128 and the number of SIGINT.
pub const INTERRUPTED: u8 = 130;

/// For the help.
pub const HELP: &str = "\
Exit codes:
  0    done
  1    found a problem
  2    wrong usage
  3    database out of reach
  130  interrupted before it was done";
