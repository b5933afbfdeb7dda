use super::*;
use crate::admission::{AccountCategory, AccountStatus};
use crate::sync::Mutex;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What a foreign account of three permits does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    None,
    NewKeyEachTime,
    TakesWhenItDeclines,
    TakesWhenItRefuses,
    NeverDebits,
    IgnoresTheReservation,
    RefusesBesideTheReservation,
    NeverRefuses,
    LosesWhatIsGiven,
    CreditsTwice,
    NamesAnInstantTooEarly,
    WakesOnGive,
    LetsOthersPastTheShort,
    RefusesOnceItIsUsed,
    ForgetsAReservationLater,
}

struct Foreign {
    fault: Fault,
    since: Instant,
    key: AccountKey,
    out: Mutex<i64>,
}

const PERMITS: usize = 3;
/// Later than anything but the long walk.
const LATER: Duration = Duration::from_secs(5);

fn count(amounts: &[&str]) -> i64 {
    amounts.len() as i64
}

impl RateLimiter for Foreign {
    type Amount = &'static str;

    fn account_for(&self, _: &&'static str) -> AccountKey {
        match self.fault {
            Fault::NewKeyEachTime => AccountKey::new("foreign"),
            _ => self.key.clone(),
        }
    }

    fn describe(&self, _: &AccountKey) -> AccountStatus {
        let out = (*self.out.lock()).unsigned_abs();
        AccountStatus::new(AccountCategory::Semaphore, PERMITS as u64, out)
    }

    fn replenishment(&self) -> Replenishment {
        Replenishment::Release
    }

    fn fits(&self, mine: &[&str], ahead: &[&str], now: Instant) -> Result<bool, JobError> {
        let never = mine.len() > PERMITS
            || self.fault == Fault::RefusesBesideTheReservation
                && mine.len() + ahead.len() > PERMITS;
        if never && self.fault != Fault::NeverRefuses {
            return Err(JobError::uncorrectable("can never fit"));
        }
        let out = *self.out.lock();
        if self.fault == Fault::RefusesOnceItIsUsed && out == 1 && mine.len() == PERMITS {
            return Err(JobError::uncorrectable("not any more"));
        }
        let ahead = match self.fault {
            Fault::LetsOthersPastTheShort if out == 2 => 0,
            Fault::IgnoresTheReservation => 0,
            Fault::ForgetsAReservationLater
                if out == 2 && ahead.len() == 1 && now > self.since + LATER =>
            {
                0
            }
            _ => count(ahead),
        };
        Ok(out + count(mine) + ahead <= PERMITS as i64)
    }

    fn try_take(
        &self,
        mine: &[&'static str],
        ahead: &[&'static str],
        now: Instant,
    ) -> Result<bool, JobError> {
        let answer = self.fits(mine, ahead, now);
        let debits = match (&answer, self.fault) {
            (_, Fault::NeverDebits) => false,
            (Err(_), fault) => fault == Fault::TakesWhenItRefuses,
            (Ok(false), fault) => fault == Fault::TakesWhenItDeclines,
            (Ok(true), _) => true,
        };
        if debits {
            *self.out.lock() += count(mine);
        }
        answer
    }

    fn give(&self, amounts: &[&'static str], _: Instant) {
        *self.out.lock() -= match self.fault {
            Fault::LosesWhatIsGiven => 0,
            Fault::CreditsTwice => 2 * count(amounts),
            _ => count(amounts),
        };
        if self.fault == Fault::WakesOnGive {
            self.key.capacity_grew();
        }
    }

    fn revision(&self) -> Option<u64> {
        Some(7)
    }

    fn earliest_fit(&self, _: &[&str], _: &[&str], now: Instant) -> Option<Instant> {
        (self.fault == Fault::NamesAnInstantTooEarly).then_some(now)
    }
}

struct Fixture(Fault);

impl AccountFixture for Fixture {
    type Limiter = Foreign;

    fn fresh(&self, now: Instant) -> Arc<Foreign> {
        Arc::new(Foreign {
            fault: self.0,
            since: now,
            key: AccountKey::new("foreign"),
            out: Mutex::new(0),
        })
    }

    fn all(&self) -> Vec<&'static str> {
        vec!["seat"; PERMITS]
    }

    fn one(&self) -> &'static str {
        "seat"
    }

    fn too_much(&self) -> Vec<&'static str> {
        vec!["seat"; PERMITS + 1]
    }
}

#[test]
fn a_foreign_account_that_keeps_the_rules_passes() {
    check(&Fixture(Fault::None));
}

#[test]
fn every_fault_of_a_foreign_account_is_found_under_its_rule() {
    for (fault, rule) in [
        (Fault::NewKeyEachTime, "ACC-7"),
        (Fault::TakesWhenItDeclines, "ACC-2"),
        (Fault::TakesWhenItRefuses, "ACC-2"),
        (Fault::NeverDebits, "ACC-2"),
        (Fault::IgnoresTheReservation, "ACC-1"),
        (Fault::RefusesBesideTheReservation, "ACC-1"),
        (Fault::NeverRefuses, "ACC-1"),
        (Fault::LosesWhatIsGiven, "ACC-3"),
        (Fault::CreditsTwice, "ACC-3"),
        (Fault::NamesAnInstantTooEarly, "ACC-4"),
        (Fault::WakesOnGive, "ACC-5"),
        (Fault::LetsOthersPastTheShort, "revision"),
        (Fault::RefusesOnceItIsUsed, "revision"),
        (Fault::ForgetsAReservationLater, "revision"),
    ] {
        let panic = catch_unwind(AssertUnwindSafe(|| check(&Fixture(fault))))
            .expect_err("the kit passed an account that breaks a rule");
        let text = panic
            .downcast_ref::<String>()
            .unwrap_or_else(|| panic!("{fault:?} ended without a message"));
        assert!(text.starts_with(rule), "{fault:?}: {text}");
    }
}
