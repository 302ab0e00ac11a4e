//! When and where it was measured, and how to measure it again.

use std::{fs, time::SystemTime};

use serde::Serialize;

use crate::Options;

#[derive(Debug, Serialize)]
pub struct Circumstances {
    pub date: String,
    /// Processors, their number and kind, and the operating system.
    pub machine: String,
    /// None where the database is a part of the process.
    pub server: Option<String>,
    pub command: String,
}

impl Circumstances {
    pub fn of(options: &Options) -> Self {
        let (db, workload) = (crate::rounds::database_name(options.db), options.workload.name());
        let mut command =
            format!("cargo xtask bench --db {db} --workload {workload} --rounds {}", options.rounds);
        options.systems.iter().for_each(|system| command += &format!(" --system {system}"));
        Self {
            date: humantime::format_rfc3339_seconds(SystemTime::now()).to_string(),
            machine: machine(),
            server: options.server.clone(),
            command,
        }
    }
}

fn machine() -> String {
    let processors = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let named = processors.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    let kind = named.map_or("unknown", |(_, kind)| kind.trim());
    let count = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{count} x {kind}, {} {}", std::env::consts::OS, std::env::consts::ARCH)
}
