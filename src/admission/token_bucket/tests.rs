use super::*;
use crate::admission::Wake;
use crate::error::ErrorKind;
use crate::testing::account_contract::{AccountFixture, check};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

fn bucket(tokens: u32, requests: u32) -> (TokenBucket, Instant) {
    let now = Instant::now();
    let bucket = TokenBucket::new("gpt", TokenBudget::new(tokens, requests), now).unwrap();
    (bucket, now)
}

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn indicator(bucket: &TokenBucket) -> Option<String> {
    bucket.describe(bucket.key()).indicator
}

/// Counts the wakes of the account from here on.
fn count_wakes(bucket: &TokenBucket) -> Arc<AtomicUsize> {
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&woken);
    let wake = Wake::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    bucket.key().install(1, &wake).unwrap();
    woken
}

// case TB-01
#[test]
fn a_drained_bucket_names_the_instant_of_the_next_fit() {
    let (bucket, now) = bucket(6_000, 600);
    assert!(bucket.try_take(&[6_000], &[], now).unwrap());
    assert!(!bucket.fits(&[100], &[], now).unwrap());
    assert_eq!(bucket.earliest_fit(&[100], &[], now), Some(now + ms(1_000)));
}

// case TB-02
#[test]
fn tokens_come_back_with_time() {
    let (bucket, now) = bucket(6_000, 600);
    assert!(bucket.try_take(&[6_000], &[], now).unwrap());
    assert!(!bucket.fits(&[100], &[], now + ms(999)).unwrap());
    assert!(bucket.fits(&[100], &[], now + ms(1_001)).unwrap());
    assert!(bucket.try_take(&[100], &[], now + ms(1_001)).unwrap());
}

// case TB-04
#[test]
fn a_throttle_of_one_doubles_the_wait() {
    let (bucket, now) = bucket(6_000, 600);
    assert!(bucket.try_take(&[6_000], &[], now).unwrap());
    bucket.record_429(now);
    bucket.record_429(now);
    assert_eq!(bucket.throttle(), 1.0);
    assert_eq!(bucket.earliest_fit(&[100], &[], now), Some(now + ms(2_000)));
}

// case TB-05
#[test]
fn beside_a_reservation_an_ask_waits_and_is_never_refused() {
    let (bucket, now) = bucket(1_000, 60);
    assert!(!bucket.fits(&[500], &[800], now).unwrap());
    assert_eq!(bucket.earliest_fit(&[500], &[800], now), None);
    assert!(bucket.fits(&[500], &[400], now).unwrap());
}

// case TB-06
#[test]
fn more_than_the_budget_is_refused_with_both_figures() {
    let (bucket, now) = bucket(1_000, 60);
    for refused in [
        bucket.fits(&[1_001], &[], now),
        bucket.try_take(&[500, 501], &[], now),
    ] {
        let error = refused.unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
        let text = error.to_string();
        assert!(text.contains("1001") && text.contains("1000"), "{text}");
        assert!(text.contains("exceeds"), "{text}");
    }
    assert_eq!(bucket.status(now).tokens, 1_000);
}

// case TB-07
#[test]
fn a_cap_lowered_under_a_parked_amount_refuses_it_at_its_next_look() {
    let (bucket, now) = bucket(10_000, 60);
    assert!(bucket.try_take(&[10_000], &[], now).unwrap());
    assert!(!bucket.fits(&[9_000], &[], now).unwrap());
    bucket.set_config(TokenBudget::new(8_000, 60), now);
    assert!(bucket.fits(&[9_000], &[], now).is_err());
}

// case TB-09
#[test]
fn requests_are_a_budget_of_their_own() {
    let (bucket, now) = bucket(1_000_000, 2);
    assert!(bucket.try_take(&[1], &[], now).unwrap());
    assert!(bucket.try_take(&[1], &[], now).unwrap());
    assert!(!bucket.fits(&[1], &[], now).unwrap());
    assert_eq!(bucket.earliest_fit(&[1], &[], now), Some(now + ms(30_000)));
}

// case TB-10
#[test]
fn each_amount_costs_one_request() {
    let (bucket, now) = bucket(1_000_000, 2);
    let error = bucket.fits(&[1, 1, 1], &[], now).unwrap_err();
    assert!(error.to_string().contains("requests exceeds"), "{error}");
}

// case TB-11
#[test]
fn backpressure_stretches_the_minute_up_to_ten_times() {
    let (bucket, now) = bucket(6_000, 600);
    assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
    bucket.record_429(now);
    assert_eq!(bucket.throttle(), 0.5);
    assert_eq!(indicator(&bucket).as_deref(), Some("throttle:1.5x"));
    bucket.record_429(now);
    assert_eq!(indicator(&bucket).as_deref(), Some("throttle:2.0x"));
    bucket.record_429(now);
    assert_eq!(bucket.throttle(), 1.5);
    for _ in 3..20 {
        bucket.record_429(now);
    }
    assert_eq!(bucket.throttle(), 9.0);
    assert_eq!(indicator(&bucket).as_deref(), Some("throttle:10.0x"));
}

#[test]
fn an_overload_is_three_increments() {
    let (bucket, now) = bucket(6_000, 600);
    bucket.record_backpressure(0, now);
    assert_eq!(bucket.throttle(), 0.0);
    bucket.record_backpressure(3, now);
    assert_eq!(bucket.throttle(), 1.5);
    bucket.record_backpressure(u32::MAX, now);
    assert_eq!(bucket.throttle(), 9.0);
}

// case TB-12
#[test]
fn every_third_success_relaxes_the_throttle_and_wakes() {
    let (bucket, now) = bucket(6_000, 600);
    let woken = count_wakes(&bucket);
    bucket.on_success(now);
    assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
    bucket.record_429(now);
    for left in [0.5, 0.5, 0.3, 0.3, 0.3, 0.1, 0.1, 0.1, 0.0] {
        bucket.on_success(now);
        assert_eq!(bucket.throttle(), left);
    }
    for _ in 0..6 {
        bucket.on_success(now);
    }
    assert_eq!((bucket.throttle(), indicator(&bucket)), (0.0, None));
    assert_eq!(woken.load(Ordering::SeqCst), 3);
}

#[test]
fn after_five_quiet_minutes_every_success_relaxes_faster() {
    let (bucket, now) = bucket(6_000, 600);
    bucket.record_backpressure(4, now);
    let almost = now + ms(300_000) - Duration::from_nanos(1);
    bucket.on_success(almost);
    assert_eq!(bucket.throttle(), 2.0);
    let quiet = now + ms(300_000);
    for left in [1.5, 1.0, 0.5, 0.0, 0.0] {
        bucket.on_success(quiet);
        assert_eq!(bucket.throttle(), left);
    }
}

#[test]
fn the_level_is_settled_under_the_old_rate_before_the_throttle_changes() {
    let (bucket, now) = bucket(6_000, 600);
    assert!(bucket.try_take(&[6_000], &[], now).unwrap());
    let later = now + ms(10_000);
    bucket.record_backpressure(2, later);
    assert_eq!(bucket.status(later).tokens, 1_000);
    assert_eq!(bucket.status(later + ms(10_000)).tokens, 1_500);
}

// case TB-15
#[test]
fn a_new_budget_applies_in_place() {
    let (bucket, now) = bucket(1_000_000, 600);
    let woken = count_wakes(&bucket);
    let woken = || woken.load(Ordering::SeqCst);
    bucket.record_429(now);
    bucket.set_config(TokenBudget::new(100_000, 600), now);
    let status = bucket.status(now);
    assert_eq!(status.throttle, 0.5);
    assert_eq!(
        (status.tokens, status.budget.tokens_per_minute),
        (100_000, 100_000)
    );
    assert_eq!(woken(), 0);
    bucket.set_config(TokenBudget::new(15_000_000, 600), now);
    let status = bucket.status(now);
    assert_eq!(
        (status.tokens, status.budget.tokens_per_minute),
        (100_000, 15_000_000)
    );
    assert_eq!(woken(), 1);
    bucket.set_config(TokenBudget::new(15_000_000, 600), now);
    assert_eq!(woken(), 1);
    bucket.set_config(TokenBudget::new(14_000_000, 700), now);
    assert_eq!(woken(), 2);
    bucket.set_config(TokenBudget::new(0, 9), now);
    bucket.set_config(TokenBudget::new(9, 0), now);
    assert_eq!(bucket.budget(), TokenBudget::new(14_000_000, 700));
    assert_eq!(woken(), 2);
}

// case TB-16
#[test]
fn thirty_seconds_refill_half_of_the_budget() {
    let (bucket, now) = bucket(60_000, 60);
    assert!(bucket.try_take(&[60_000], &[], now).unwrap());
    let status = bucket.status(now);
    assert_eq!((status.tokens, status.requests), (0, 59));
    let status = bucket.status(now + ms(30_000));
    assert_eq!((status.tokens, status.requests), (30_000, 60));
}

// case TB-17
#[test]
fn a_bucket_describes_itself_in_tokens() {
    let (bucket, now) = bucket(60_000, 60);
    assert!(bucket.try_take(&[20_000], &[], now).unwrap());
    let status = bucket.describe(&bucket.account_for(&1));
    assert_eq!(status.category, AccountCategory::TokenBucket);
    assert_eq!(bucket.account_for(&1).name(), "gpt");
    assert_eq!((status.capacity, status.in_use), (60_000, 20_000));
    assert_eq!(status.summary, "40000/60000 tokens, 59/60 requests");
}

// case ACC-06
// case ACC-09
#[test]
fn tokens_count_as_units_and_only_time_brings_them_back() {
    let (bucket, _) = bucket(1_000, 60);
    let units = |amounts: &[u32]| amounts.iter().map(|a| bucket.units(a)).sum::<u64>();
    assert_eq!(units(&[300, 300]), 600);
    assert_eq!(units(&[]), 0);
    assert_eq!(bucket.replenishment(), Replenishment::Time);
}

#[test]
fn a_refund_is_at_once_and_bounded_by_both_caps() {
    let (bucket, now) = bucket(1_000, 3);
    assert!(bucket.try_take(&[400, 400], &[], now).unwrap());
    bucket.give(&[400], now);
    let status = bucket.status(now);
    assert_eq!((status.tokens, status.requests), (600, 2));
    bucket.give(&[400, 400, 400], now);
    let status = bucket.status(now);
    assert_eq!((status.tokens, status.requests), (1_000, 3));
}

#[test]
fn a_budget_without_a_figure_is_refused_by_field() {
    for (budget, field) in [
        (TokenBudget::new(0, 1), "tokens_per_minute"),
        (TokenBudget::new(1, 0), "requests_per_minute"),
    ] {
        let error = TokenBucket::new("gpt", budget, Instant::now()).unwrap_err();
        assert!(
            matches!(error.kind(), ErrorKind::InvalidInput { parameter, .. } if parameter == field),
            "{error}"
        );
    }
    assert!(TokenBucket::new(" ", TokenBudget::new(1, 1), Instant::now()).is_err());
}

struct Buckets {
    budget: TokenBudget,
}

impl AccountFixture for Buckets {
    type Limiter = TokenBucket;

    fn fresh(&self, now: Instant) -> Arc<TokenBucket> {
        Arc::new(TokenBucket::new("gpt", self.budget, now).unwrap())
    }

    fn all(&self) -> Vec<u32> {
        vec![self.budget.tokens_per_minute]
    }

    fn one(&self) -> u32 {
        1
    }

    fn too_much(&self) -> Vec<u32> {
        vec![self.budget.tokens_per_minute, 1]
    }
}

#[test]
fn a_bucket_keeps_the_contract_of_accounts() {
    for budget in [
        TokenBudget::new(6_000, 600),
        TokenBudget::new(7, 1),
        TokenBudget::new(u32::MAX, u32::MAX),
    ] {
        check(&Buckets { budget });
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32, u32),
    Give(u32),
    Backpressure(u32),
    Success,
    Config(u32, u32),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let figure = prop_oneof![1..50_u32, 1_000..2_000_000_u32, Just(u32::MAX)];
    let step = prop_oneof![
        4 => (figure.clone(), 0..3_u32).prop_map(|(a, b)| Step::Take(a, b)),
        2 => figure.clone().prop_map(Step::Give),
        1 => (0..25_u32).prop_map(Step::Backpressure),
        3 => Just(Step::Success),
        1 => (figure.clone(), figure).prop_map(|(a, b)| Step::Config(a, b)),
        4 => prop_oneof![0..2_000_u64, 0..400_000_000_000_u64].prop_map(Step::Wait),
    ];
    prop::collection::vec(step, 0..40)
}

fn perform(bucket: &TokenBucket, steps: &[Step], start: Instant) -> Instant {
    let mut now = start;
    for step in steps {
        match *step {
            Step::Take(amount, ahead) => {
                let _ = bucket.try_take(&[amount], &vec![1; ahead as usize], now);
            }
            Step::Give(amount) => bucket.give(&[amount], now),
            Step::Backpressure(n) => bucket.record_backpressure(n, now),
            Step::Success => bucket.record_success(now),
            Step::Config(tokens, requests) => {
                bucket.set_config(TokenBudget::new(tokens, requests), now);
            }
            Step::Wait(nanos) => now += Duration::from_nanos(nanos),
        }
    }
    now
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever was answered without the lock before it.
    #[test]
    fn a_question_is_answered_by_what_is_there(
        steps in steps(),
        asked in prop::collection::vec((1..1_100_u64, 1..4_usize), 40),
    ) {
        let (bucket, mut now) = bucket(1_000_000, 60);
        for (step, (share, count)) in steps.iter().zip(asked) {
            now = perform(&bucket, std::slice::from_ref(step), now);
            let status = bucket.status(now);
            let budget = status.budget;
            let amount = u64::from(status.tokens).max(1_000) * share / 1_000;
            let mine = vec![u32::try_from(amount / count as u64).unwrap_or(u32::MAX); count];
            let tokens: u64 = mine.iter().copied().map(u64::from).sum();
            let possible = tokens <= u64::from(budget.tokens_per_minute)
                && count as u64 <= u64::from(budget.requests_per_minute);
            let there = tokens <= u64::from(status.tokens)
                && count as u64 <= u64::from(status.requests);
            let fits = bucket.fits(&mine, &[], now);
            prop_assert_eq!(fits.ok(), possible.then_some(there));
            prop_assert_eq!(bucket.status(now), status);
        }
    }

    #[test]
    fn no_level_ever_leaves_nothing_to_budget(steps in steps()) {
        let (bucket, mut now) = bucket(1_000_000, 60);
        for step in &steps {
            now = perform(&bucket, std::slice::from_ref(step), now);
            let state = bucket.state.lock();
            let window = state.window();
            prop_assert!(state.tokens.level <= state.tokens.cap(window));
            prop_assert!(state.requests.level <= state.requests.cap(window));
            prop_assert!(state.throttle <= MAX_THROTTLE);
        }
    }

    #[test]
    fn an_amount_fits_at_the_named_instant_and_not_a_nanosecond_before(
        steps in steps(),
        share in 1..=1_000_u64,
        ahead in 0..3_u32,
    ) {
        let (bucket, start) = bucket(1_000_000, 60);
        let now = perform(&bucket, &steps, start);
        let budget = bucket.budget();
        let amount = (u64::from(budget.tokens_per_minute) * share).div_ceil(1_000) as u32;
        let (mine, ahead) = ([amount], vec![1; ahead as usize]);
        let behind = ahead.len() as u64;
        let possible = u64::from(amount) + behind <= u64::from(budget.tokens_per_minute)
            && behind < u64::from(budget.requests_per_minute);
        let at = bucket.earliest_fit(&mine, &ahead, now);
        prop_assert_eq!(at.is_some(), possible);
        if let Some(at) = at {
            prop_assert!(bucket.fits(&mine, &ahead, at.max(now)).unwrap());
            prop_assert!(at.saturating_duration_since(now) <= Duration::from_secs(600));
            if at > now {
                let before = at - Duration::from_nanos(1);
                prop_assert!(!bucket.fits(&mine, &ahead, before).unwrap());
            }
            prop_assert_eq!(bucket.fits(&mine, &ahead, now).unwrap(), at <= now);
        }
    }
}
