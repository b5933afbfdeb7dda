//! The contract behind every limit (`ACC`).
//!
//! A limit here never blocks. It answers whether an amount would fit, debits it in one step, and
//! takes it back; the monitor does the waiting for all of them together. So a limit of a user's
//! own takes part in grants, reservation, rollback and events exactly as the built-in ones do.

use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use crate::error::{JobError, UpstreamFailure};
use crate::sync::Mutex;

/// A limit: an account that jobs draw amounts from.
///
/// All of it runs under the monitor's lock. An implementation must not block, log, publish, or
/// call the runtime; the runtime answers such a call with a `System` error at once. It may lock
/// state of its own. Every method that depends on time takes `now`; an account reads no clock.
///
/// `mine` are the amounts of one demand on one account, `reserved_ahead` those that the head of
/// the line has set aside on the same account (empty for the head itself).
/// [`testing::account_contract`](crate::testing) checks an implementation against these rules.
pub trait RateLimiter: Send + Sync + 'static {
    /// What is asked for: `u32` tokens, `()` for one permit, or a key that chooses a bucket.
    type Amount: Clone + Eq + Hash + fmt::Debug + Send + Sync + 'static;

    /// The account that this amount debits. A limiter with one account answers a clone of the
    /// same key every time; a router answers the key of the bucket that it routes to. Limiters with
    /// amounts of different types cannot share an account: admission refuses whoever asks for the second.
    fn account_for(&self, amount: &Self::Amount) -> AccountKey;

    /// What the account is and how full. Cheap: it is asked for every event.
    fn describe(&self, account: &AccountKey) -> AccountStatus;

    /// How a permit comes back.
    fn replenishment(&self) -> Replenishment;

    /// Whether `mine` would fit now with `reserved_ahead` set aside.
    ///
    /// # Errors
    /// A refusal: of what can never fit (name both figures), or of everyone while the account
    /// cannot serve. What would fit alone, but not beside the reservation, is `false`.
    fn fits(
        &self,
        mine: &[Self::Amount],
        reserved_ahead: &[Self::Amount],
        now: Instant,
    ) -> Result<bool, JobError>;

    /// The check of [`fits`](Self::fits) and the debit in one step; `false` took nothing.
    ///
    /// # Errors
    /// As for [`fits`](Self::fits); an error took nothing.
    fn try_take(
        &self,
        mine: &[Self::Amount],
        reserved_ahead: &[Self::Amount],
        now: Instant,
    ) -> Result<bool, JobError>;

    /// Credits amounts back: when work that held them ends ([`Replenishment::Release`]), and, for
    /// every account, when work that was granted never happened.
    fn give(&self, amounts: &[Self::Amount], now: Instant);

    /// [`give`](Self::give) of amounts that were taken at `taken`, the instant that
    /// [`try_take`](Self::try_take) was asked at. This is what admission calls. For an account to which it
    /// matters whose the amounts were, as it does to a circuit with a probe out; others leave it as it is.
    fn give_taken(&self, amounts: &[Self::Amount], taken: Instant, now: Instant) {
        let _ = taken;
        self.give(amounts, now);
    }

    /// The instant at which the clock alone closes the shortfall, `None` when only an event can.
    /// At that instant, with nothing else changed, [`fits`](Self::fits) is true. An instant in the
    /// past means now; an account that stays short and goes on saying so is asked once a millisecond.
    fn earliest_fit(
        &self,
        mine: &[Self::Amount],
        reserved_ahead: &[Self::Amount],
        now: Instant,
    ) -> Option<Instant>;

    /// How far the line may foresee the answers of this account: a number that stands for all that
    /// changes them but takes, gives and the clock (a cap, a throttle, a circuit). `None`, the
    /// default, when they cannot be foreseen; then every kind of demand is asked in every walk.
    ///
    /// An account that answers a number makes a long line cheap, and promises, while the number
    /// stays:
    ///
    /// 1. Amounts that are not refused now will not be. A refusal never depends on what was taken.
    /// 2. A take makes nothing fit and brings no instant nearer. Time alone makes nothing short
    ///    that fitted, and nothing fit before [`earliest_fit`](Self::earliest_fit) says, which
    ///    says the same until something is taken or given.
    /// 3. What is short alone is short beside anything: if `x` does not fit with nothing reserved,
    ///    no amounts fit with `x` reserved, and no sooner.
    /// 4. Of two lists of as many amounts, the one of more [`units`](Self::units) never fits where
    ///    the other does not, and no sooner.
    /// 5. What fits beside amounts fits once these are taken, and beside as many amounts of fewer
    ///    units.
    ///
    /// A router answers for all of its buckets together.
    fn revision(&self) -> Option<u64> {
        None
    }

    /// Whether [`AccountKey::revised`] is called after every change of the
    /// [`revision`](Self::revision), to or from `None` as well. Then it is asked after such a call
    /// alone and not in every walk, which counts where a line asks of many accounts. No unless the
    /// limiter says otherwise; the answer never changes.
    fn announces_revisions(&self) -> bool {
        false
    }

    /// How many units this amount counts for in events. One unless the limiter says otherwise.
    fn units(&self, amount: &Self::Amount) -> u64 {
        let _ = amount;
        1
    }

    /// Work that drew on the account succeeded; heard before its resources close.
    fn on_success(&self, now: Instant) {
        let _ = now;
    }

    /// Work that drew on the account failed because of the service behind it.
    fn on_rate_limit_error(&self, failure: &UpstreamFailure, now: Instant) {
        let _ = (failure, now);
    }

    /// Whether work that draws on the account also needs a place in the HTTP pool. No unless the
    /// limiter says otherwise.
    fn requires_http_connection(&self) -> bool {
        false
    }
}

/// How a permit comes back to its account.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Replenishment {
    /// Held for the duration of the work; the close of the work's resources gives it back.
    Release,
    /// Spent against a window; only time brings it back. Giving it back at close would make
    /// throughput a function of how long jobs run.
    Time,
}

/// What kind of limit an account is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AccountCategory {
    /// The memory gate.
    Memory,
    /// Tokens and requests per minute.
    TokenBucket,
    /// Requests per sliding window.
    ElasticWindow,
    /// So many at once.
    Semaphore,
}

impl fmt::Display for AccountCategory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Memory => "memory",
            Self::TokenBucket => "token_bucket",
            Self::ElasticWindow => "elastic_window",
            Self::Semaphore => "semaphore",
        })
    }
}

/// What an account tells about itself at one instant.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct AccountStatus {
    /// What kind of limit it is.
    pub category: AccountCategory,
    /// How much there is in all: permits, or tokens per minute.
    pub capacity: u64,
    /// How much is out.
    pub in_use: u64,
    /// `None` when nominal, else `blocked`, `probing`, `throttle:1.5x` or `pace:1500ms`.
    pub indicator: Option<String>,
    /// One line for people.
    pub summary: String,
}

impl AccountStatus {
    /// A nominal status whose summary is `in_use/capacity`.
    #[must_use]
    pub fn new(category: AccountCategory, capacity: u64, in_use: u64) -> Self {
        Self {
            category,
            capacity,
            in_use,
            indicator: None,
            summary: format!("{in_use}/{capacity}"),
        }
    }

    /// Says that the account is not nominal.
    #[must_use]
    pub fn indicator(mut self, indicator: impl Into<String>) -> Self {
        self.indicator = Some(indicator.into());
        self
    }

    /// Says it in other words.
    #[must_use]
    pub fn summary(mut self, summary: impl Into<String>) -> Self {
        self.summary = summary.into();
        self
    }
}

/// The identity of an account, and where the monitor hooks into it.
///
/// An account makes one when it is built and answers clones of it. It holds the account's name,
/// an id that no other account of the process has, and the slot for the monitor's wake.
#[derive(Clone)]
pub struct AccountKey {
    seat: Arc<Seat>,
}

struct Seat {
    id: u64,
    name: Arc<str>,
    slot: Mutex<Option<Installed>>,
}

#[derive(Clone)]
struct Installed {
    owner: u64,
    wake: Wake,
}

/// Only tells accounts apart; holds no state.
static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// How many revisions were announced, by any account.
static REVISED: AtomicU64 = AtomicU64::new(0);

/// How many changes of revisions have been announced so far.
#[inline]
pub(super) fn revisions() -> u64 {
    REVISED.load(Ordering::Acquire)
}

impl AccountKey {
    /// A new account of this name. Two accounts of one name cannot serve one dispatcher.
    #[must_use]
    pub fn new(name: impl Into<Arc<str>>) -> Self {
        Self {
            seat: Arc::new(Seat {
                id: NEXT_ID.fetch_add(1, Ordering::Relaxed),
                name: name.into(),
                slot: Mutex::new(None),
            }),
        }
    }

    /// The id, unique to this account in the process.
    #[must_use]
    pub fn id(&self) -> u64 {
        self.seat.id
    }

    /// The name, as events and reports show it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.seat.name
    }

    pub(crate) fn name_shared(&self) -> Arc<str> {
        Arc::clone(&self.seat.name)
    }

    /// Tells the monitor that capacity grew by the account's own doing: a cap raised, a throttle
    /// relaxed, a circuit closed. Never for a tightening, and not needed for what the clock
    /// refills. May be called under the account's own lock. From inside an answer it calls for another
    /// look at the whole line; an account that goes on doing so and stays short is heard once a
    /// millisecond.
    pub fn capacity_grew(&self) {
        let installed = self.seat.slot.lock().clone();
        if let Some(installed) = installed {
            installed.wake.wake();
        }
    }

    /// Announces that the [`revision`](RateLimiter::revision) has changed, either way; for a limiter
    /// that [says that it does](RateLimiter::announces_revisions). Called after the change. It wakes
    /// nobody, and may be called under the account's own lock.
    pub fn revised(&self) {
        // Which account it was does not matter: after a change all are asked.
        REVISED.fetch_add(1, Ordering::Release);
    }

    /// Whether no other clone of this key is left: its account is gone.
    pub(crate) fn is_the_last(&self) -> bool {
        Arc::strong_count(&self.seat) == 1
    }

    /// Installs the wake of the monitor that the account belongs to from now on.
    ///
    /// # Errors
    /// The owner that it belongs to already, when that is another.
    pub(crate) fn install(&self, owner: u64, wake: &Wake) -> Result<(), u64> {
        let mut slot = self.seat.slot.lock();
        match &*slot {
            Some(installed) if installed.owner != owner => Err(installed.owner),
            _ => {
                *slot = Some(Installed {
                    owner,
                    wake: wake.clone(),
                });
                Ok(())
            }
        }
    }

    /// Frees the account of its monitor, if `owner` is the one that it belongs to.
    pub(crate) fn clear(&self, owner: u64) {
        let mut slot = self.seat.slot.lock();
        if slot
            .as_ref()
            .is_some_and(|installed| installed.owner == owner)
        {
            *slot = None;
        }
    }
}

impl PartialEq for AccountKey {
    fn eq(&self, other: &Self) -> bool {
        self.id() == other.id()
    }
}

impl Eq for AccountKey {}

impl Hash for AccountKey {
    fn hash<H: std::hash::Hasher>(&self, state: &mut H) {
        self.id().hash(state);
    }
}

impl fmt::Debug for AccountKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AccountKey({} #{})", self.name(), self.id())
    }
}

/// Wakes the monitor's evaluator. A leaf: it takes no lock but the evaluator's cell.
#[derive(Clone)]
pub struct Wake {
    wake: Arc<dyn Fn() + Send + Sync>,
}

impl Wake {
    /// A wake that runs `wake`.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            wake: Arc::new(wake),
        }
    }

    /// Runs it.
    pub fn wake(&self) {
        (self.wake)();
    }
}

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicUsize;

    // case ACC-02
    #[test]
    fn there_is_one_wake_slot_and_clearing_empties_it() {
        let key = AccountKey::new("a");
        let woken = Arc::new(AtomicUsize::new(0));
        let counted = Arc::clone(&woken);
        let wake = Wake::new(move || {
            counted.fetch_add(1, Ordering::SeqCst);
        });
        key.capacity_grew();
        key.install(1, &wake).unwrap();
        key.capacity_grew();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
        key.clear(1);
        key.capacity_grew();
        assert_eq!(woken.load(Ordering::SeqCst), 1);
    }

    #[test]
    fn an_account_belongs_to_the_first_monitor_until_it_is_cleared() {
        let key = AccountKey::new("a");
        let wake = Wake::new(|| {});
        key.install(1, &wake).unwrap();
        key.install(1, &wake).unwrap();
        assert_eq!(key.install(2, &wake), Err(1));
        key.clear(2);
        assert_eq!(key.install(2, &wake), Err(1));
        key.clear(1);
        key.install(2, &wake).unwrap();
    }
}
