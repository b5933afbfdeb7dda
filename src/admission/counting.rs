//! So many at once: an account of permits (`CNT`).
//!
//! # Invariants
//!
//! 1. `out` is the number of permits out, at most the capacity. It grows only in `try_take`, together
//!    with the check.
//! 2. `orphaned` counts among the permits that are out those whose work is over while what the
//!    permit stands for is still there. It is shown and decides nothing.
//! 3. Both are one word, which changes at once; so a gate needs no lock.

use std::time::Instant;

use super::account::{AccountCategory, AccountKey, AccountStatus, RateLimiter, Replenishment};
use crate::clock::Stamp;
use crate::error::JobError;
use crate::sync::atomic::{AtomicU64, Ordering};

/// A limit of so many permits at once, each held for the duration of the work.
///
/// ```
/// use nucleo_runtime::admission::CountingGate;
///
/// let gate = CountingGate::new("printer", 2)?;
/// assert_eq!((gate.capacity(), gate.available()), (2, 2));
/// assert!(CountingGate::new("printer", 0).is_err());
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Debug)]
pub struct CountingGate {
    key: AccountKey,
    capacity: u32,
    /// [`Permits`] in one word.
    permits: AtomicU64,
    /// The [`Stamp`] of the last activity.
    last_activity: AtomicU64,
}

/// The gate of the pool of HTTP connections.
pub type HttpConnectionGate = CountingGate;

/// The gate of a database, or of its one writer.
pub type DatabaseGate = CountingGate;

/// The gate of a model that serves only so many calls at once.
pub type ModelGate = CountingGate;

/// The permits that are not to be had.
#[derive(Clone, Copy, Debug)]
struct Permits {
    out: u32,
    orphaned: u32,
}

impl Permits {
    #[inline]
    fn unpack(word: u64) -> Self {
        Self {
            out: word as u32,
            orphaned: (word >> u32::BITS) as u32,
        }
    }

    #[inline]
    fn pack(self) -> u64 {
        u64::from(self.out) | u64::from(self.orphaned) << u32::BITS
    }
}

/// How full a [`CountingGate`] is at one instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GateStatus {
    /// How many permits there are.
    pub max: u32,
    /// How many are left.
    pub available: u32,
    /// How many are out.
    pub active: u32,
    /// How many of those that are out stand for something whose job has ended without it.
    pub orphaned: u32,
    /// When a permit was last taken or given back.
    pub last_activity: Option<Instant>,
}

impl CountingGate {
    /// A gate of `capacity` permits.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name or a capacity of zero.
    pub fn new(name: impl Into<String>, capacity: u32) -> Result<Self, JobError> {
        let name = name.into();
        if name.trim().is_empty() {
            return Err(JobError::invalid_input("name", name, "must not be blank"));
        }
        if capacity == 0 {
            return Err(JobError::invalid_input(
                "capacity",
                capacity,
                format!("the gate '{name}' must have at least one permit"),
            ));
        }
        Ok(Self {
            key: AccountKey::new(name),
            capacity,
            permits: AtomicU64::new(0),
            last_activity: AtomicU64::new(Stamp::never().word()),
        })
    }

    /// The gate `http` of a pool of `capacity` connections.
    ///
    /// # Errors
    /// `InvalidInput` for a capacity of zero.
    pub fn http(capacity: u32) -> Result<HttpConnectionGate, JobError> {
        Self::new("http", capacity)
    }

    /// The gate `db:<name>` of a database that serves `capacity` jobs at once.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name or a capacity of zero.
    pub fn database(name: &str, capacity: u32) -> Result<DatabaseGate, JobError> {
        Self::new(database_account(name)?, capacity)
    }

    /// The gate `db:<name>:write` of a database with one writer: its one permit.
    ///
    /// # Errors
    /// `InvalidInput` for a blank name.
    pub fn database_writer(name: &str) -> Result<DatabaseGate, JobError> {
        Self::new(format!("{}:write", database_account(name)?), 1)
    }

    /// The gate of the model entry `id`, which serves `max_concurrent` calls at once.
    ///
    /// # Errors
    /// `InvalidInput` for a blank id or a capacity of zero.
    pub fn model(id: &str, max_concurrent: u32) -> Result<ModelGate, JobError> {
        Self::new(id, max_concurrent)
    }

    /// Its name, as events and reports show it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.key.name()
    }

    /// The identity of the account.
    #[must_use]
    pub fn key(&self) -> &AccountKey {
        &self.key
    }

    /// How many permits there are.
    #[must_use]
    pub fn capacity(&self) -> u32 {
        self.capacity
    }

    /// How many permits are out.
    #[must_use]
    pub fn in_use(&self) -> u32 {
        self.status().active
    }

    /// How many permits are left.
    #[must_use]
    pub fn available(&self) -> u32 {
        self.status().available
    }

    /// How many permits stand for something whose job has ended without it.
    #[must_use]
    pub fn orphaned(&self) -> u32 {
        self.status().orphaned
    }

    /// Everything at one instant.
    #[must_use]
    pub fn status(&self) -> GateStatus {
        let Permits { out, orphaned } = self.permits();
        GateStatus {
            max: self.capacity,
            available: self.capacity.saturating_sub(out),
            active: out,
            orphaned,
            last_activity: Stamp::of_word(self.last_activity.load(Ordering::Relaxed)).instant(),
        }
    }

    /// Shows one more permit as orphaned: its job has ended, the connection behind it has not.
    /// The permit stays out until it is given back. Undone by
    /// [`clear_orphaned`](Self::clear_orphaned).
    pub fn mark_orphaned(&self) {
        self.change(|permits| Permits {
            orphaned: permits.orphaned.saturating_add(1),
            ..permits
        });
    }

    /// Shows one orphan less: the connection is gone.
    pub fn clear_orphaned(&self) {
        self.change(|permits| Permits {
            orphaned: permits.orphaned.saturating_sub(1),
            ..permits
        });
    }

    #[inline]
    fn permits(&self) -> Permits {
        Permits::unpack(self.permits.load(Ordering::SeqCst))
    }

    #[inline]
    fn change(&self, change: impl Fn(Permits) -> Permits) {
        let change = |word| Some(change(Permits::unpack(word)).pack());
        // Never an error: there is always something to change to.
        let _was = self
            .permits
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, change);
    }

    #[inline]
    fn note_activity(&self, now: Instant) {
        self.last_activity
            .store(Stamp::of(now).word(), Ordering::Relaxed);
    }

    #[cold]
    #[inline(never)]
    fn refuse_impossible(&self, mine: u64) -> JobError {
        JobError::uncorrectable(format!(
            "{mine} permits of '{}' were asked for at once and it has {}: this can never fit",
            self.name(),
            self.capacity
        ))
    }

    /// How many are out once `mine` is taken beside what is reserved; none when it does not fit.
    #[inline]
    fn out_with(&self, out: u32, mine: usize, ahead: usize) -> Result<Option<u32>, JobError> {
        let (mine, ahead) = (mine as u64, ahead as u64);
        let capacity = u64::from(self.capacity);
        if mine > capacity {
            return Err(self.refuse_impossible(mine));
        }
        let taken = u64::from(out).saturating_add(mine);
        let fits = taken.saturating_add(ahead) <= capacity;
        Ok(u32::try_from(taken).ok().filter(|_| fits))
    }
}

fn database_account(name: &str) -> Result<String, JobError> {
    if name.trim().is_empty() {
        return Err(JobError::invalid_input("name", name, "must not be blank"));
    }
    Ok(format!("db:{name}"))
}

impl RateLimiter for CountingGate {
    type Amount = ();

    fn account_for(&self, (): &()) -> AccountKey {
        self.key.clone()
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let GateStatus {
            max,
            active,
            orphaned,
            ..
        } = self.status();
        let status = AccountStatus::new(
            AccountCategory::Semaphore,
            u64::from(max),
            u64::from(active),
        );
        if orphaned == 0 {
            return status;
        }
        status
            .indicator(format!("orphaned:{orphaned}"))
            .summary(format!("{active}/{max}, {orphaned} orphaned"))
    }

    /// The capacity never changes.
    #[inline]
    fn revision(&self) -> Option<u64> {
        Some(0)
    }

    #[inline]
    fn announces_revisions(&self) -> bool {
        true
    }

    #[inline]
    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    #[inline]
    fn fits(&self, mine: &[()], reserved_ahead: &[()], _: Instant) -> Result<bool, JobError> {
        let out = self.permits().out;
        let with = self.out_with(out, mine.len(), reserved_ahead.len())?;
        Ok(with.is_some())
    }

    #[inline]
    fn try_take(&self, mine: &[()], reserved_ahead: &[()], now: Instant) -> Result<bool, JobError> {
        let mut word = self.permits.load(Ordering::SeqCst);
        loop {
            let permits = Permits::unpack(word);
            let Some(out) = self.out_with(permits.out, mine.len(), reserved_ahead.len())? else {
                return Ok(false);
            };
            let taken = Permits { out, ..permits }.pack();
            let order = Ordering::SeqCst;
            match self.permits.compare_exchange(word, taken, order, order) {
                Ok(_) => {
                    self.note_activity(now);
                    return Ok(true);
                }
                Err(other) => word = other,
            }
        }
    }

    #[inline]
    fn give(&self, amounts: &[()], now: Instant) {
        let given = u32::try_from(amounts.len()).unwrap_or(u32::MAX);
        self.change(|permits| Permits {
            out: permits.out.saturating_sub(given),
            ..permits
        });
        self.note_activity(now);
    }

    #[inline]
    fn earliest_fit(&self, _: &[()], _: &[()], _: Instant) -> Option<Instant> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::testing::account_contract::{AccountFixture, check};
    use std::sync::Arc;
    use std::time::Duration;

    fn described(gate: &CountingGate) -> AccountStatus {
        gate.describe(gate.key())
    }

    // case ACC-01
    // case ACC-09
    #[test]
    fn a_gate_is_its_own_identity_and_is_given_back_by_release() {
        let gate = CountingGate::database("orders", 2).unwrap();
        assert_eq!(gate.account_for(&()), *gate.key());
        assert_ne!(
            gate.key(),
            CountingGate::database("orders", 2).unwrap().key()
        );
        assert_eq!(gate.replenishment(), Replenishment::Release);
        assert_eq!(described(&gate).indicator, None);
        assert_eq!(described(&gate).category, AccountCategory::Semaphore);
        assert!(!gate.requires_http_connection());
    }

    // case ACC-04
    #[test]
    fn a_gate_tells_how_full_it_is_and_when_it_last_moved() {
        let start = Instant::now();
        let gate = CountingGate::new("gate", 2).unwrap();
        assert_eq!(gate.status().last_activity, None);
        assert!(gate.try_take(&[()], &[], start).unwrap());
        let status = gate.status();
        assert_eq!((status.max, status.available, status.active), (2, 1, 1));
        assert_eq!(status.last_activity, Some(start));
        assert!(described(&gate).summary.contains("1/2"));
        let later = start + Duration::from_secs(1);
        gate.give(&[()], later);
        assert_eq!(gate.status().last_activity, Some(later));
        assert_eq!(gate.available(), 2);
    }

    // case ACC-05
    #[test]
    fn more_than_the_capacity_is_refused_on_the_check_and_on_the_take() {
        let now = Instant::now();
        let gate = CountingGate::new("gate", 2).unwrap();
        for refused in [
            gate.fits(&[(); 3], &[], now),
            gate.try_take(&[(); 3], &[], now),
        ] {
            let error = refused.unwrap_err();
            assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
            let text = error.to_string();
            assert!(text.contains("can never fit"), "{text}");
            assert!(text.contains('3') && text.contains('2'), "{text}");
        }
        assert_eq!(gate.in_use(), 0);
        assert_eq!(gate.status().last_activity, None);
    }

    // case ACC-06
    #[test]
    fn a_permit_counts_for_one() {
        let gate = CountingGate::new("gate", 3).unwrap();
        let units = |amounts: &[()]| amounts.iter().map(|amount| gate.units(amount)).sum::<u64>();
        assert_eq!(units(&[(); 3]), 3);
        assert_eq!(units(&[]), 0);
    }

    // case DB-01
    #[test]
    fn a_database_gate_counts_up_to_its_capacity() {
        let now = Instant::now();
        let gate = CountingGate::database("default", 2).unwrap();
        assert_eq!(gate.name(), "db:default");
        for taken in 1..=2 {
            assert_eq!(gate.in_use(), taken - 1);
            assert!(gate.try_take(&[()], &[], now).unwrap());
            assert_eq!((gate.in_use(), gate.capacity()), (taken, 2));
        }
        assert!(!gate.fits(&[()], &[], now).unwrap());
        assert!(!gate.try_take(&[()], &[], now).unwrap());
        gate.give(&[()], now);
        assert_eq!((gate.in_use(), gate.capacity()), (1, 2));
    }

    // case DB-02
    #[test]
    fn what_is_reserved_ahead_is_not_there_to_take() {
        let now = Instant::now();
        let gate = CountingGate::database("default", 2).unwrap();
        assert!(gate.try_take(&[()], &[], now).unwrap());
        assert!(gate.fits(&[()], &[], now).unwrap());
        assert!(!gate.fits(&[()], &[()], now).unwrap());
        assert!(!gate.try_take(&[()], &[()], now).unwrap());
        assert_eq!(gate.in_use(), 1);
        assert_eq!(gate.earliest_fit(&[()], &[()], now), None);
    }

    #[test]
    fn each_gate_of_the_runtime_is_named_for_what_it_limits() {
        assert_eq!(CountingGate::http(1_000).unwrap().name(), "http");
        assert_eq!(CountingGate::model("gpt", 4).unwrap().name(), "gpt");
        let writer = CountingGate::database_writer("orders").unwrap();
        assert_eq!((writer.name(), writer.capacity()), ("db:orders:write", 1));
    }

    #[test]
    fn a_gate_without_a_permit_or_a_name_is_refused_by_field_and_rule() {
        for (refused, field) in [
            (CountingGate::new("gate", 0), "capacity"),
            (CountingGate::http(0), "capacity"),
            (CountingGate::new(" ", 1), "name"),
            (CountingGate::database("", 1), "name"),
            (CountingGate::database_writer(" "), "name"),
        ] {
            let error = refused.unwrap_err();
            assert!(
                matches!(error.kind(), ErrorKind::InvalidInput { parameter, .. } if parameter == field),
                "{error}"
            );
        }
    }

    #[test]
    fn an_orphan_is_shown_until_it_is_gone() {
        let now = Instant::now();
        let gate = CountingGate::database("orders", 3).unwrap();
        assert!(gate.try_take(&[(); 2], &[], now).unwrap());
        gate.mark_orphaned();
        assert_eq!(gate.orphaned(), 1);
        assert_eq!(described(&gate).indicator.as_deref(), Some("orphaned:1"));
        assert_eq!(described(&gate).summary, "2/3, 1 orphaned");
        gate.clear_orphaned();
        gate.clear_orphaned();
        assert_eq!(described(&gate).indicator, None);
        assert_eq!(gate.in_use(), 2);
    }

    struct Gates;

    impl AccountFixture for Gates {
        type Limiter = CountingGate;

        fn fresh(&self, _: Instant) -> Arc<CountingGate> {
            Arc::new(CountingGate::new("gate", 3).unwrap())
        }

        fn all(&self) -> Vec<()> {
            vec![(); 3]
        }

        fn one(&self) {}

        fn too_much(&self) -> Vec<()> {
            vec![(); 4]
        }
    }

    #[test]
    fn a_gate_keeps_the_contract_of_accounts() {
        check(&Gates);
    }
}
