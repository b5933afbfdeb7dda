//! What is told: a bar while it runs, and the figures at the end.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use nucleo_runtime::admission::AccountCategory;
use nucleo_runtime::events::{
    Event, EventFamily, EventFilter, LimiterChange, LimiterEvent, Observer,
};

/// Counts what the runtime tells. It hears of it on a thread of its own, so it slows no job.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    jobs: AtomicU64,
    tokens: AtomicU64,
    waits: Mutex<BTreeMap<String, Duration>>,
}

impl Tally {
    pub(crate) fn filter() -> EventFilter {
        EventFilter::all()
            .family(EventFamily::Lifecycle)
            .family(EventFamily::Limiter)
    }

    fn count(&self, change: &LimiterEvent) {
        let metered = change.category == AccountCategory::TokenBucket;
        match change.change {
            LimiterChange::GrantedImmediate | LimiterChange::GrantedFromHold => {
                if metered {
                    self.tokens.fetch_add(change.amount, Ordering::Relaxed);
                }
                let mut waits = self.waits.lock().unwrap_or_else(PoisonError::into_inner);
                *waits.entry(change.account.to_string()).or_default() += change.wait;
            }
            // Tokens come back only when the work that they were granted for never began.
            LimiterChange::Released if metered => {
                self.tokens.fetch_sub(change.amount, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

impl Observer for Tally {
    fn observe(&self, event: &Arc<Event>) {
        match &**event {
            Event::Limiter(change) => self.count(change),
            event if event.is_terminal() => {
                self.jobs.fetch_add(1, Ordering::Relaxed);
            }
            _ => {}
        }
    }
}

/// The figures of a run.
#[derive(Debug)]
pub(crate) struct Figures {
    /// Documents that were to be analysed: every one is saved, failed or skipped.
    pub(crate) documents: usize,
    /// Those of which nothing was saved.
    pub(crate) failed: usize,
    /// Files that could not be read.
    pub(crate) skipped: usize,
    /// From the first job's submission to the last one's end.
    pub(crate) wall: Duration,
    /// Connections that were open at once, at most.
    pub(crate) peak_connections: u32,
    /// From the acquisition of a connection to its give-back, added up.
    pub(crate) connection_held: Duration,
    /// How much of that was spent inside the driver.
    pub(crate) statements: Duration,
    /// Analyses of this run in the database.
    pub(crate) saved: i64,
}

impl Figures {
    /// One line of JSON.
    pub(crate) fn json(&self, tally: &Tally) -> String {
        let waits: serde_json::Map<_, _> = tally
            .waits
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .iter()
            .map(|(account, wait)| (account.clone(), millis(*wait).into()))
            .collect();
        // Written out, so that the fields stand in the order in which they are told.
        format!(
            "{{\"documents\":{},\"jobs\":{},\"failed\":{},\"skipped\":{},\"wall_ms\":{},\
             \"peak_connections\":{},\"connection_held_ms\":{},\"statement_ms\":{},\
             \"tokens_granted\":{},\"waits_ms\":{},\"saved\":{}}}",
            self.documents,
            tally.jobs.load(Ordering::Relaxed),
            self.failed,
            self.skipped,
            millis(self.wall),
            self.peak_connections,
            millis(self.connection_held),
            millis(self.statements),
            tally.tokens.load(Ordering::Relaxed),
            serde_json::Value::Object(waits),
            self.saved,
        )
    }

    /// The closing table.
    pub(crate) fn table(&self, tally: &Tally) -> String {
        let share = match self.connection_held.as_secs_f64() {
            0.0 => 0.0,
            held => self.statements.as_secs_f64() / held * 100.0,
        };
        let row = |name: &str, value: String| format!("  {name:<20} {value}\n");
        let mut table = String::new();
        table += &row("documents", self.documents.to_string());
        table += &row("saved", self.saved.to_string());
        table += &row("failed", self.failed.to_string());
        table += &row("skipped files", self.skipped.to_string());
        table += &row("jobs", tally.jobs.load(Ordering::Relaxed).to_string());
        table += &row("wall time", format!("{} ms", millis(self.wall)));
        table += &row("connections at once", self.peak_connections.to_string());
        table += &row(
            "connections held",
            format!("{} ms", millis(self.connection_held)),
        );
        table += &row(
            "inside statements",
            format!("{} ms ({share:.0} %)", millis(self.statements)),
        );
        table += &row(
            "tokens granted",
            tally.tokens.load(Ordering::Relaxed).to_string(),
        );
        let waits = tally.waits.lock().unwrap_or_else(PoisonError::into_inner);
        for (account, wait) in waits.iter().filter(|(_, wait)| !wait.is_zero()) {
            table += &row("waited for", format!("{account}: {} ms", millis(*wait)));
        }
        table
    }
}

fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// A bar on stderr, where that is a terminal.
#[derive(Debug)]
pub(crate) struct Bar {
    total: usize,
    drawn_at: Option<Instant>,
    visible: bool,
}

impl Bar {
    const WIDTH: usize = 40;
    /// More often than this nobody sees.
    const EVERY: Duration = Duration::from_millis(50);

    pub(crate) fn new(total: usize, wanted: bool) -> Self {
        Self {
            total,
            drawn_at: None,
            visible: wanted && io::stderr().is_terminal(),
        }
    }

    pub(crate) fn show(&mut self, done: usize, failed: usize) {
        let recently = self
            .drawn_at
            .is_some_and(|drawn_at| drawn_at.elapsed() < Self::EVERY);
        if !self.visible || recently && done < self.total {
            return;
        }
        self.drawn_at = Some(Instant::now());
        let filled = Self::WIDTH * done / self.total.max(1);
        let mut line = format!(
            "\r[{}{}] {done}/{}",
            "#".repeat(filled),
            ".".repeat(Self::WIDTH - filled),
            self.total
        );
        if failed > 0 {
            line += &format!(", {failed} failed");
        }
        // A bar that cannot be drawn is no reason to stop.
        let _ = io::stderr().write_all(line.as_bytes());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.visible && self.drawn_at.is_some() {
            let _ = io::stderr().write_all(b"\r\x1b[K");
        }
    }
}
