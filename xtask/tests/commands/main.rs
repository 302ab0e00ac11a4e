//! The commands as a person types them: real processes, real servers, real signals.

mod bad_input;
mod bench;
mod command;
mod mutants;
mod postgres;
mod torture;
