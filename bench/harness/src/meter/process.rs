//! What the kernel counts of processes.

use std::{collections::HashMap, fs};

use anyhow::{Context, Result};
use nix::unistd::{SysconfVar, sysconf};

/// Processor time of a process, of all that descend from it, and of those of its children that have ended.
pub fn tree_cpu_us(root: u32) -> Result<u64> {
    let ticks_per_s = sysconf(SysconfVar::CLK_TCK)?.context("no clock tick")?;
    let mut children: HashMap<u32, Vec<(u32, u64)>> = HashMap::new();
    let mut ticks = 0;
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end while we look.
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let Some((parent, own)) = parent_and_ticks(&stat) else { continue };
        if pid == root {
            ticks += own;
        } else {
            children.entry(parent).or_default().push((pid, own));
        }
    }
    let mut parents = vec![root];
    while let Some(parent) = parents.pop() {
        for (pid, own) in children.remove(&parent).unwrap_or_default() {
            ticks += own;
            parents.push(pid);
        }
    }
    Ok(ticks * 1_000_000 / u64::try_from(ticks_per_s)?)
}

/// The parent, and user and system time, its own and that of the children it has seen end.
fn parent_and_ticks(stat: &str) -> Option<(u32, u64)> {
    // The name in parentheses may hold anything.
    let (_, fields) = stat.rsplit_once(") ")?;
    let fields: Vec<_> = fields.split(' ').collect();
    let times = fields.get(11..15)?.iter().map(|field| field.parse::<u64>());
    Some((fields.get(1)?.parse().ok()?, times.sum::<Result<u64, _>>().ok()?))
}

/// From now on, the peak is counted anew.
pub fn reset_peak() -> Result<()> {
    fs::write("/proc/self/clear_refs", "5").context("cannot reset the peak of memory")
}

/// The most memory that a process has had at a time.
pub fn peak_bytes(pid: u32) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).context("no VmHWM")?;
    Ok(peak.trim().trim_end_matches(" kB").parse::<u64>()? * 1024)
}

/// Bytes that this process has written to files.
pub fn written_bytes() -> Result<u64> {
    let io = fs::read_to_string("/proc/self/io")?;
    let written = io.lines().find_map(|line| line.strip_prefix("wchar: ")).context("no wchar")?;
    Ok(written.parse()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parent_and_all_times_are_read_whatever_the_name() {
        let stat = "7 (a) (b c) S 5 7 7 0 -1 4194304 1 2 3 4 10 20 30 40 20 0 1 0 99";
        assert_eq!(parent_and_ticks(stat), Some((5, 100)));
    }

    #[test]
    fn time_that_this_process_spends_is_counted() {
        let me = std::process::id();
        let before = tree_cpu_us(me).expect("it is there");
        let began = std::time::Instant::now();
        while began.elapsed() < std::time::Duration::from_millis(100) {}
        assert!(tree_cpu_us(me).expect("it is there") > before);
    }

    #[test]
    fn memory_that_was_given_back_stays_in_the_peak_until_it_is_reset() {
        let me = std::process::id();
        drop(std::hint::black_box(vec![1_u8; 64 << 20]));
        let peak = peak_bytes(me).expect("it is there");
        reset_peak().expect("our own");
        assert!(peak_bytes(me).expect("it is there") < peak - (32 << 20));
    }
}
