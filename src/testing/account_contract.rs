//! The rules that every [`RateLimiter`] keeps, run against any implementation (`ACC-9`).
//!
//! Say in an [`AccountFixture`] what fits your account and what never does, and call [`check`]
//! from a test.
//!
//! ```
//! use std::sync::Arc;
//! use std::time::Instant;
//! use nucleo_runtime::admission::CountingGate;
//! use nucleo_runtime::testing::account_contract::{AccountFixture, check};
//!
//! struct Licences;
//!
//! impl AccountFixture for Licences {
//!     type Limiter = CountingGate;
//!     fn fresh(&self, _: Instant) -> Arc<CountingGate> {
//!         Arc::new(CountingGate::new("licences", 2).unwrap())
//!     }
//!     fn all(&self) -> Vec<()> { vec![(), ()] }
//!     fn one(&self) {}
//!     fn too_much(&self) -> Vec<()> { vec![(), (), ()] }
//! }
//!
//! check(&Licences);
//! ```
//!
//! What it cannot see is time spent: that no method blocks, logs or calls the runtime is yours to
//! keep.

#[cfg(test)]
mod tests;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::admission::{AccountKey, RateLimiter, Replenishment, Wake};
use crate::error::JobError;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// What [`check`] needs to know about an account.
pub trait AccountFixture {
    /// The implementation under test.
    type Limiter: RateLimiter;

    /// A new account on which nothing is out.
    fn fresh(&self, now: Instant) -> Arc<Self::Limiter>;

    /// Amounts of one account that use up a fresh one: together they fit, and after them
    /// [`one`](Self::one) does not.
    fn all(&self) -> Vec<Amount<Self>>;

    /// An amount of the same account that fits a fresh one alone.
    fn one(&self) -> Amount<Self>;

    /// Amounts of the same account that together can never fit.
    fn too_much(&self) -> Vec<Amount<Self>>;
}

/// What the limiter of a fixture is asked for.
pub type Amount<F> = <<F as AccountFixture>::Limiter as RateLimiter>::Amount;

/// How many steps the random walk of [`check`] makes.
const WALK: u32 = 600;

/// Runs every rule that can be checked from outside against the account of `fixture`.
///
/// # Panics
/// When a rule is broken; the message starts with the rule's id.
pub fn check<F: AccountFixture>(fixture: &F) {
    let start = Instant::now();
    identity(fixture, start);
    questions_change_nothing(fixture, start);
    the_impossible_is_refused(fixture, start);
    a_reservation_is_respected(fixture, start);
    a_take_debits_and_a_give_credits(fixture, start);
    the_earliest_fit_is_exact(fixture, start);
    nothing_wakes_without_growth(fixture, start);
    the_check_and_the_take_agree(fixture, start);
    what_it_foresees_comes_true(fixture, start);
}

struct Subject<'f, F: AccountFixture> {
    fixture: &'f F,
    account: Arc<F::Limiter>,
    key: AccountKey,
}

impl<'f, F: AccountFixture> Subject<'f, F> {
    fn fresh(fixture: &'f F, now: Instant) -> Self {
        let account = fixture.fresh(now);
        let key = account.account_for(&fixture.one());
        Self {
            fixture,
            account,
            key,
        }
    }

    fn fits(
        &self,
        mine: &[Amount<F>],
        ahead: &[Amount<F>],
        now: Instant,
    ) -> Result<bool, JobError> {
        self.account.fits(mine, ahead, now)
    }

    fn takes(
        &self,
        mine: &[Amount<F>],
        ahead: &[Amount<F>],
        now: Instant,
    ) -> Result<bool, JobError> {
        self.account.try_take(mine, ahead, now)
    }

    fn take_all(&self, now: Instant, rule: &str) {
        demand(
            matches!(self.takes(&self.fixture.all(), &[], now), Ok(true)),
            rule,
            "all that a fresh account has could not be taken at once",
        );
    }

    fn has_all(&self, now: Instant) -> bool {
        matches!(self.fits(&self.fixture.all(), &[], now), Ok(true))
    }

    fn has_one(&self, now: Instant) -> bool {
        self.has(&[self.fixture.one()], now)
    }

    fn has(&self, mine: &[Amount<F>], now: Instant) -> bool {
        matches!(self.fits(mine, &[], now), Ok(true))
    }
}

fn demand(holds: bool, rule: &str, broken: &str) {
    assert!(holds, "{rule}: {broken}");
}

fn identity<F: AccountFixture>(fixture: &F, now: Instant) {
    const RULE: &str = "ACC-7";
    let subject = Subject::fresh(fixture, now);
    let others = [fixture.all(), fixture.too_much(), vec![fixture.one()]].concat();
    demand(
        others
            .iter()
            .all(|amount| subject.account.account_for(amount) == subject.key),
        RULE,
        "amounts of one account answered different keys; make the key once and answer clones",
    );
    demand(
        fixture.fresh(now).account_for(&fixture.one()) != subject.key,
        RULE,
        "two accounts share one key; each makes a key of its own",
    );
    demand(
        !subject.key.name().trim().is_empty(),
        RULE,
        "the name is blank",
    );
    let before = subject.account.describe(&subject.key);
    demand(
        !before.summary.trim().is_empty() && !before.summary.contains('\n'),
        RULE,
        "the summary is not one line",
    );
    demand(
        before.indicator.is_none(),
        RULE,
        "a fresh account is not nominal",
    );
    subject.take_all(now, "ACC-2");
    let after = subject.account.describe(&subject.key);
    demand(
        before.category == after.category && before.capacity == after.capacity,
        RULE,
        "category or capacity changed with the use",
    );
    demand(
        before.in_use == 0 && after.in_use <= after.capacity,
        RULE,
        "what is in use lies outside of nothing to everything",
    );
}

fn questions_change_nothing<F: AccountFixture>(fixture: &F, now: Instant) {
    let subject = Subject::fresh(fixture, now);
    let (one, all) = (vec![fixture.one()], fixture.all());
    for _ in 0..3 {
        let _ = subject.fits(&all, &[], now);
        let _ = subject.fits(&one, &all, now);
        let _ = subject.fits(&fixture.too_much(), &[], now);
        let _ = subject.account.earliest_fit(&one, &all, now);
        let _ = subject.account.describe(&subject.key);
    }
    demand(
        subject.has_all(now),
        "ACC-1",
        "asking changed what fits; `fits` and `earliest_fit` take nothing",
    );
}

fn the_impossible_is_refused<F: AccountFixture>(fixture: &F, now: Instant) {
    let subject = Subject::fresh(fixture, now);
    let too_much = fixture.too_much();
    demand(
        subject.fits(&too_much, &[], now).is_err(),
        "ACC-1",
        "what can never fit was not refused on the check",
    );
    demand(
        subject.takes(&too_much, &[], now).is_err(),
        "ACC-2",
        "what can never fit was not refused on the take",
    );
    demand(
        subject.has_all(now),
        "ACC-2",
        "a refused take kept something",
    );
    demand(
        subject.account.earliest_fit(&too_much, &[], now).is_none(),
        "ACC-4",
        "what can never fit was given an instant",
    );
}

fn a_reservation_is_respected<F: AccountFixture>(fixture: &F, now: Instant) {
    let subject = Subject::fresh(fixture, now);
    let (one, all) = (vec![fixture.one()], fixture.all());
    demand(
        subject.has_one(now),
        "ACC-1",
        "one amount does not fit a fresh account",
    );
    demand(
        matches!(subject.fits(&one, &all, now), Ok(false)),
        "ACC-1",
        "what fits alone but not beside the reservation must be `false`, neither true nor an error",
    );
    demand(
        matches!(subject.takes(&one, &all, now), Ok(false)),
        "ACC-2",
        "a take went into the reservation, or was refused for it",
    );
    demand(
        subject.has_all(now),
        "ACC-2",
        "a take that answered `false` kept something",
    );
}

fn a_take_debits_and_a_give_credits<F: AccountFixture>(fixture: &F, now: Instant) {
    let subject = Subject::fresh(fixture, now);
    let (one, all) = (vec![fixture.one()], fixture.all());
    subject.take_all(now, "ACC-2");
    demand(
        !subject.has_one(now),
        "ACC-2",
        "a take did not debit: one more fits an account that is used up",
    );
    demand(
        matches!(subject.takes(&one, &[], now), Ok(false)),
        "ACC-2",
        "an account was overdrawn, or refused one for whom there is a later",
    );
    subject.account.give(&all, now);
    demand(
        subject.has_all(now),
        "ACC-3",
        "what was given back is not there",
    );
    subject.take_all(now, "ACC-3");
    demand(
        !subject.has_one(now),
        "ACC-3",
        "more was credited than was taken",
    );
    demand(
        subject.account.replenishment() == subject.account.replenishment(),
        "ACC-6",
        "how permits come back must not change",
    );
}

fn the_earliest_fit_is_exact<F: AccountFixture>(fixture: &F, start: Instant) {
    const RULE: &str = "ACC-4";
    let subject = Subject::fresh(fixture, start);
    let now = start + Duration::from_millis(7);
    subject.take_all(now, "ACC-2");
    let one = vec![fixture.one()];
    let asks = [
        (one.clone(), Vec::new()),
        (fixture.all(), Vec::new()),
        (one.clone(), one.clone()),
    ];
    for (mine, ahead) in asks {
        let Some(at) = subject.account.earliest_fit(&mine, &ahead, now) else {
            // Beside a reservation an account may have no answer; alone a clocked one always has.
            demand(
                subject.account.replenishment() == Replenishment::Release || !ahead.is_empty(),
                RULE,
                "an account that time refills named no instant for what will fit",
            );
            continue;
        };
        demand(
            matches!(subject.fits(&mine, &ahead, at), Ok(true)),
            RULE,
            "at the instant that it named the amounts do not fit",
        );
        let before = at - Duration::from_nanos(1);
        demand(
            before < now || matches!(subject.fits(&mine, &ahead, before), Ok(false)),
            RULE,
            "the amounts fit before the instant that it named",
        );
    }
}

fn nothing_wakes_without_growth<F: AccountFixture>(fixture: &F, now: Instant) {
    let subject = Subject::fresh(fixture, now);
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&woken);
    let wake = Wake::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    // A key of this fixture's own making belongs to nobody yet.
    demand(
        subject.key.install(0, &wake).is_ok(),
        "ACC-5",
        "a fresh account belongs to a monitor already",
    );
    let (one, all) = (vec![fixture.one()], fixture.all());
    subject.take_all(now, "ACC-2");
    let _ = subject.takes(&one, &[], now);
    let _ = subject.fits(&one, &[], now);
    let _ = subject.account.earliest_fit(&one, &[], now);
    subject.account.give(&all, now);
    subject.key.clear(0);
    demand(
        woken.load(Ordering::SeqCst) == 0,
        "ACC-5",
        "a question, a take or a give ran the wake; only growth of the account's own doing does",
    );
}

/// Random steps in random time. Whatever happened before: the take answers what the check just
/// answered, and nothing is ever out beyond the capacity.
fn the_check_and_the_take_agree<F: AccountFixture>(fixture: &F, start: Instant) {
    let subject = Subject::fresh(fixture, start);
    let shapes = [vec![fixture.one()], fixture.all(), fixture.too_much()];
    let mut dice = Dice(0x2545_F491_4F6C_DD1D);
    let mut now = start;
    let mut out: Vec<Vec<Amount<F>>> = Vec::new();
    for _ in 0..WALK {
        now += Duration::from_micros(u64::from(dice.below(1_500_000)));
        // Half of the amounts asked for are the small ones.
        let shape = |face: u32| shapes[face.saturating_sub(2) as usize % shapes.len()].clone();
        let mine = shape(dice.below(5));
        let ahead = match dice.below(3) {
            0 => shapes[0].clone(),
            _ => Vec::new(),
        };
        if dice.below(3) == 0 {
            if let Some(amounts) = out.pop() {
                subject.account.give(&amounts, now);
            }
        } else {
            let said = subject.fits(&mine, &ahead, now).ok();
            let took = subject.takes(&mine, &ahead, now).ok();
            demand(
                said == took,
                "ACC-2",
                "the take answered otherwise than the check of the same instant",
            );
            if took == Some(true) {
                out.push(mine);
            }
        }
        let status = subject.account.describe(&subject.key);
        demand(
            status.in_use <= status.capacity,
            "ACC-2",
            "more is out than there is",
        );
    }
}

/// An account that answers a [`revision`](RateLimiter::revision) keeps what that promises, whatever
/// was taken and given. Skipped for one that answers none.
fn what_it_foresees_comes_true<F: AccountFixture>(fixture: &F, start: Instant) {
    const RULE: &str = "revision";
    let subject = Subject::fresh(fixture, start);
    let Some(revision) = subject.account.revision() else {
        return;
    };
    let (one, all) = (vec![fixture.one()], fixture.all());
    let mut as_many = vec![fixture.one(); all.len()];
    if !subject.has(&as_many, start) {
        as_many.clone_from(&all);
    }
    let mut dice = Dice(0x9E37_79B9_7F4A_7C15);
    let mut now = start;
    let mut out: Vec<Vec<Amount<F>>> = Vec::new();
    // None, an instant that never comes, is the latest of all.
    let instant = |mine: &[Amount<F>], ahead: &[Amount<F>], now| {
        let at = subject.account.earliest_fit(mine, ahead, now);
        at.map_or((true, start), |at| (false, at.max(now)))
    };
    for _ in 0..WALK {
        now += Duration::from_micros(u64::from(dice.below(900_000)));
        for mine in [&one, &all, &as_many] {
            let alone = subject.fits(mine, &[], now).ok();
            demand(
                alone.is_some(),
                RULE,
                "amounts that were not refused before are refused now",
            );
            if alone == Some(true) {
                continue;
            }
            for other in [&one, &all, &as_many] {
                demand(
                    matches!(subject.fits(other, mine, now), Ok(false)),
                    RULE,
                    "amounts fit beside others that do not fit alone",
                );
                demand(
                    instant(other, mine, now) >= instant(mine, &[], now),
                    RULE,
                    "beside amounts that are short others were named a nearer instant",
                );
            }
        }
        let units = |amounts: &[Amount<F>]| -> u64 {
            amounts.iter().map(|it| subject.account.units(it)).sum()
        };
        let (less, more) = match units(&as_many) <= units(&all) {
            true => (&as_many, &all),
            false => (&all, &as_many),
        };
        demand(
            subject.has(less, now) || !subject.has(more, now),
            RULE,
            "more units fit where fewer do not",
        );
        let before = instant(&one, &[], now);
        let had = subject.has_one(now);
        if dice.below(3) == 0 {
            if let Some(amounts) = out.pop() {
                subject.account.give(&amounts, now);
            }
            continue;
        }
        let mine = if dice.below(3) == 0 { &all } else { &one };
        let beside = |ahead| matches!(subject.fits(&one, ahead, now), Ok(true));
        demand(
            beside(less) || !beside(more),
            RULE,
            "amounts fit beside more units and not beside fewer",
        );
        let fits_beside = beside(mine);
        if matches!(subject.takes(mine, &[], now), Ok(true)) {
            out.push(mine.clone());
            demand(
                !fits_beside || subject.has_one(now),
                RULE,
                "what fitted beside amounts does not fit once these were taken",
            );
            demand(
                had || !subject.has_one(now),
                RULE,
                "a take made something fit",
            );
            demand(
                instant(&one, &[], now) >= before,
                RULE,
                "a take brought an instant nearer",
            );
        }
        demand(
            subject.account.revision() == Some(revision),
            RULE,
            "takes, gives and the clock changed the revision",
        );
    }
}

/// Reproducible dice (xorshift64*): a failure is the same on every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, faces: u32) -> u32 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let high = (self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 32) as u32;
        high % faces
    }
}
