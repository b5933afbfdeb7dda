//! How many threads this process may hold, read from the system at start.

/// Every thread of the standard library takes four memory maps: stack, guard page, and the two of
/// its signal stack.
const MAPS_PER_THREAD: usize = 4;
/// What is left to the rest of the program, in eighths of the tightest limit.
const MARGIN_EIGHTHS: usize = 1;
/// More than this is never useful: each parked thread costs tens of kilobytes of real memory.
const CEILING: usize = 32_768;
/// Where the system tells nothing: a number that every current system allows.
const FALLBACK: usize = 2_048;

/// The limits that bound the number of threads; `None` where the system sets or tells none.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
struct SystemLimits {
    max_map_count: Option<usize>,
    maps_in_use: usize,
    threads_in_use: usize,
    pid_max: Option<usize>,
    threads_max: Option<usize>,
    user_processes: Option<usize>,
    cgroup_pids: Option<usize>,
}

impl SystemLimits {
    /// The tightest limit, less what is in use already and a margin of an eighth.
    fn cap(self) -> usize {
        let by_maps = self
            .max_map_count
            .map(|max| max.saturating_sub(self.maps_in_use) / MAPS_PER_THREAD);
        let by_count = [
            self.pid_max,
            self.threads_max,
            self.user_processes,
            self.cgroup_pids,
        ]
        .into_iter()
        .flatten()
        .map(|max| max.saturating_sub(self.threads_in_use));
        by_maps
            .into_iter()
            .chain(by_count)
            .min()
            .map_or(FALLBACK, |tightest| {
                tightest - tightest * MARGIN_EIGHTHS / 8
            })
            .min(CEILING)
    }
}

/// How many threads the runtime may hold in this process, now.
///
/// Elsewhere than on Linux a fixed 2 048: nothing there tells the limits without `unsafe`.
pub(crate) fn derived_cap() -> usize {
    read_limits().cap()
}

#[cfg(target_os = "linux")]
fn read_limits() -> SystemLimits {
    use std::fs;

    let number =
        |path: &str| -> Option<usize> { fs::read_to_string(path).ok()?.trim().parse().ok() };
    SystemLimits {
        max_map_count: number("/proc/sys/vm/max_map_count"),
        maps_in_use: fs::read_to_string("/proc/self/maps").map_or(0, |maps| maps.lines().count()),
        threads_in_use: fs::read_to_string("/proc/self/status")
            .ok()
            .and_then(|status| {
                let line = status.lines().find(|line| line.starts_with("Threads:"))?;
                line.split_whitespace().nth(1)?.parse().ok()
            })
            .unwrap_or(0),
        pid_max: number("/proc/sys/kernel/pid_max"),
        threads_max: number("/proc/sys/kernel/threads-max"),
        user_processes: fs::read_to_string("/proc/self/limits")
            .ok()
            .and_then(|limits| soft_process_limit(&limits)),
        cgroup_pids: fs::read_to_string("/proc/self/cgroup")
            .ok()
            .and_then(|groups| {
                crate::cgroup::limit_files(&groups, "pids", "pids.max", "pids.max")
                    .iter()
                    .filter_map(|path| number(path))
                    .min()
            }),
    }
}

#[cfg(not(target_os = "linux"))]
fn read_limits() -> SystemLimits {
    SystemLimits::default()
}

/// The soft limit of `Max processes` in the text of `/proc/self/limits`; `unlimited` is none.
#[cfg(target_os = "linux")]
fn soft_process_limit(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find(|line| line.starts_with("Max processes"))?;
    line.split_whitespace().nth(2)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tightest_limit_counts_less_what_is_in_use_and_a_margin() {
        let limits = SystemLimits {
            max_map_count: Some(65_530),
            maps_in_use: 1_530,
            threads_in_use: 10,
            pid_max: Some(4_194_304),
            ..SystemLimits::default()
        };
        assert_eq!(limits.cap(), 14_000);
        let limits = SystemLimits {
            cgroup_pids: Some(90),
            ..limits
        };
        assert_eq!(limits.cap(), 70);
    }

    #[test]
    fn a_system_that_tells_nothing_gets_the_fixed_cap() {
        assert_eq!(SystemLimits::default().cap(), FALLBACK);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn limits_are_read_from_the_texts_that_linux_writes() {
        let text = "Limit                     Soft Limit           Hard Limit           Units\n\
                    Max processes             127234               127234               processes\n";
        assert_eq!(soft_process_limit(text), Some(127_234));
        let text =
            "Max processes             unlimited            unlimited            processes\n";
        assert_eq!(soft_process_limit(text), None);
        assert!(derived_cap() > 0);
    }
}
