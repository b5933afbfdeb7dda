//! What the memory gate tells about itself.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::admission::account::{AccountCategory, AccountStatus};

/// Where the memory gate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MemoryZone {
    /// Jobs start as they come.
    Green,
    /// A line is let go one by one.
    Draining,
    /// Memory is nearly full: no job that holds anything starts.
    Critical,
}

/// The memory gate as of its last look.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct MemoryStatus {
    /// Bytes in use.
    pub used: u64,
    /// Bytes that there are; zero while nothing has been read.
    pub capacity: u64,
    /// The part in use, 1.0 for all of it.
    pub ratio: f64,
    /// The part that was in use when it last fell: what is alive, without what may be freed.
    pub floor: f64,
    /// Where the gate is.
    pub zone: MemoryZone,
    /// How many jobs wait for memory.
    pub held: usize,
    /// How long after the last start the next one comes; zero when it is not held back.
    pub pacing: Duration,
    /// By how much growth stretches the delay, from 1.
    pub penalty: f64,
    /// Why the source could not be read, while it cannot: the figures are those of the last reading
    /// that succeeded.
    pub fault: Option<Arc<str>>,
}

const MIB: f64 = 1_048_576.0;

impl fmt::Display for MemoryStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:.1} of {:.1} MiB ({:.1} %, floor {:.1} %), {}",
            self.used as f64 / MIB,
            self.capacity as f64 / MIB,
            self.ratio * 100.0,
            self.floor * 100.0,
            match self.zone {
                MemoryZone::Green => "green",
                MemoryZone::Draining => "draining",
                MemoryZone::Critical => "critical",
            }
        )?;
        if self.held > 0 {
            write!(
                f,
                ", {} held, pace {} ms, penalty {:.1}",
                self.held,
                self.pacing.as_millis(),
                self.penalty
            )?;
        }
        if let Some(fault) = &self.fault {
            write!(f, ", last reading (the source fails: {fault})")?;
        }
        Ok(())
    }
}

impl MemoryStatus {
    /// The same as an account tells it.
    pub(in crate::admission) fn as_account(&self) -> AccountStatus {
        let status = AccountStatus::new(AccountCategory::Memory, self.capacity, self.used)
            .summary(self.to_string());
        match self.zone {
            MemoryZone::Green => status,
            MemoryZone::Draining => status.indicator(format!("pace:{}ms", self.pacing.as_millis())),
            MemoryZone::Critical => status.indicator("blocked"),
        }
    }
}
