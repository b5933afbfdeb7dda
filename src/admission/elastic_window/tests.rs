use super::*;
use crate::admission::{Demand, Wake};
use crate::error::ErrorKind;
use crate::testing::account_contract::{AccountFixture, check};
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;

const SECOND: Duration = Duration::from_secs(1);

fn ms(millis: u64) -> Duration {
    Duration::from_millis(millis)
}

fn builder(max: u32) -> ElasticWindowBuilder {
    ElasticWindow::builder("search", max, SECOND)
}

fn window(max: u32) -> (ElasticWindow, Instant) {
    (builder(max).build().unwrap(), Instant::now())
}

fn failure() -> UpstreamFailure {
    UpstreamFailure::with_status(503, "Search", "try later")
}

fn fail(window: &ElasticWindow, times: u32, now: Instant) {
    for _ in 0..times {
        window.on_rate_limit_error(&failure(), now);
    }
}

fn take(window: &ElasticWindow, now: Instant) -> bool {
    window.try_take(&[()], &[], now).unwrap()
}

fn circuit(window: &ElasticWindow, now: Instant) -> CircuitState {
    window.status(now).circuit
}

fn remaining(window: &ElasticWindow, now: Instant) -> Duration {
    window.status(now).cooldown_remaining
}

fn in_use(window: &ElasticWindow) -> u64 {
    window.describe(window.key()).in_use
}

fn indicator(window: &ElasticWindow) -> Option<String> {
    window.describe(window.key()).indicator
}

/// Open since `now`: 9 failures to the largest throttle and 3 at it.
fn blocked(initial: u64, max: u64) -> (ElasticWindow, Instant) {
    let window = builder(50)
        .initial_cooldown(ms(initial))
        .max_cooldown(ms(max))
        .build()
        .unwrap();
    let now = Instant::now();
    fail(&window, 12, now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    (window, now)
}

fn refusal(answer: Result<bool, JobError>) -> String {
    let error = answer.unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Uncorrectable { .. }));
    error.to_string()
}

fn count_wakes(window: &ElasticWindow) -> Arc<AtomicUsize> {
    let woken = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&woken);
    let wake = Wake::new(move || {
        counted.fetch_add(1, Ordering::SeqCst);
    });
    window.key().install(1, &wake).unwrap();
    woken
}

// case ACC-09
// case ACC-10
// case ACC-11
#[test]
fn a_permit_is_spent_against_the_window_and_no_job_gives_it_back() {
    let (window, now) = window(2);
    assert_eq!(window.replenishment(), Replenishment::Time);
    assert!(take(&window, now) && take(&window, now + ms(100)));
    let asked = now + ms(150);
    assert!(!window.fits(&[()], &[], asked).unwrap());
    assert_eq!(
        window.earliest_fit(&[()], &[], asked),
        Some(now + ms(1_000))
    );
    window.give(&[()], asked);
    assert!(window.fits(&[()], &[], asked).unwrap());
}

// case EW-01
#[test]
fn a_new_window_is_healthy_and_counts_what_is_taken() {
    let (window, now) = window(3);
    let status = window.status(now);
    assert_eq!(status.circuit, CircuitState::Healthy);
    assert_eq!((status.throttle, status.available), (0.0, 3));
    assert!(take(&window, now));
    assert_eq!(in_use(&window), 1);
    assert_eq!(window.status(now).available, 2);
}

// case EW-02
// case T6
#[test]
fn failures_stretch_the_window_and_successes_relax_it() {
    let (window, now) = window(3);
    for step in 1..=9_u32 {
        fail(&window, 1, now);
        let status = window.status(now);
        assert_eq!(status.throttle, f64::from(step));
        assert_eq!(status.window, SECOND * (step + 1));
    }
    fail(&window, 11, now);
    assert_eq!(window.throttle(), 9.0);
    for _ in 0..200 {
        window.on_success(now);
        assert!((0.0..=9.0).contains(&window.throttle()));
    }
    assert_eq!(window.throttle(), 0.0);

    fail(&window, 2, now);
    window.on_success(now);
    window.on_success(now);
    assert_eq!(window.throttle(), 2.0);
    window.on_success(now);
    assert_eq!(window.throttle(), 1.8);
}

#[test]
fn after_five_quiet_minutes_every_success_takes_half_off() {
    let (window, now) = window(3);
    fail(&window, 2, now);
    let quiet = now + Duration::from_secs(300);
    window.on_success(quiet - ms(1));
    assert_eq!(window.throttle(), 2.0);
    window.on_success(quiet);
    assert_eq!(window.throttle(), 1.5);
    window.on_success(quiet);
    assert_eq!(window.throttle(), 1.0);
}

// case EW-04
#[test]
fn a_failure_wakes_nobody_and_the_third_success_wakes_once() {
    let (window, now) = window(3);
    let woken = count_wakes(&window);
    fail(&window, 1, now);
    window.on_advisory_pressure(now);
    window.on_success(now);
    window.on_success(now);
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    window.on_success(now);
    assert_eq!(woken.load(Ordering::SeqCst), 1);
}

// case EW-05
#[test]
fn advisory_pressure_never_opens_the_circuit() {
    let (window, now) = window(3);
    for _ in 0..20 {
        window.on_advisory_pressure(now);
    }
    assert_eq!(window.throttle(), 9.0);
    assert_eq!(circuit(&window, now), CircuitState::Healthy);
}

// case EW-06
#[test]
fn a_deadline_is_that_of_the_stamp_that_has_to_fall_out() {
    let (window, start) = window(3);
    for offset in [0, 20, 40] {
        assert!(take(&window, start + ms(offset)));
    }
    let now = start + ms(50);
    assert!(!window.fits(&[()], &[], now).unwrap());
    let earliest =
        |mine: usize, ahead: usize| window.earliest_fit(&vec![(); mine], &vec![(); ahead], now);
    assert_eq!(earliest(1, 0), Some(start + ms(1_000)));
    assert_eq!(earliest(2, 0), Some(start + ms(1_020)));
    assert_eq!(earliest(1, 1), earliest(2, 0));
    assert_eq!(earliest(4, 0), None);
    assert_eq!(earliest(2, 2), None);
    assert!(!window.fits(&[(); 2], &[(); 2], now).unwrap());
    let text = refusal(window.fits(&[(); 4], &[], now));
    assert!(text.contains("can never fit"), "{text}");
}

// case EW-07
#[test]
fn a_give_drops_the_newest_stamp() {
    let (window, start) = window(2);
    assert!(take(&window, start));
    let now = start + ms(50);
    assert!(take(&window, now));
    window.give(&[()], now);
    assert!(window.fits(&[()], &[], now).unwrap());
    assert_eq!(
        window.earliest_fit(&[(); 2], &[], now),
        Some(start + ms(1_000))
    );
}

#[test]
fn what_has_fallen_out_stays_out_when_the_window_stretches() {
    let (window, start) = window(2);
    assert!(take(&window, start));
    let now = start + ms(1_000);
    assert!(take(&window, now));
    fail(&window, 1, now);
    assert_eq!(in_use(&window), 1, "the first was gone before the failure");
    assert!(take(&window, now));
    assert_eq!(window.earliest_fit(&[()], &[], now), Some(now + ms(2_000)));
}

// case EW-09
#[test]
fn an_open_circuit_refuses_everyone_with_what_a_model_can_act_on() {
    let (window, start) = blocked(10_000, 60_000);
    let now = start + ms(500);
    for answer in [
        window.fits(&[()], &[], now),
        window.try_take(&[()], &[()], now),
    ] {
        let text = refusal(answer);
        for fact in [
            "search",
            "50 requests in 1s",
            "Cooldown is active",
            "10 s",
            "try later",
        ] {
            assert!(text.contains(fact), "{fact} is missing: {text}");
        }
    }
    assert!(remaining(&window, now) > ms(9_000));
    assert_eq!(in_use(&window), 0);
    let healthy = builder(1).build().unwrap();
    assert_eq!(remaining(&healthy, now), Duration::ZERO);
}

// case EW-10
// case EW-29
#[test]
fn the_head_takes_the_one_probe_once_the_cooldown_is_over() {
    let (window, start) = blocked(100, 400);
    assert_eq!(remaining(&window, start), ms(100));
    assert!(window.fits(&[()], &[], start + ms(99)).is_err());
    assert_eq!(
        window.earliest_fit(&[()], &[], start),
        Some(start + ms(100))
    );
    let now = start + ms(100);
    assert!(window.fits(&[()], &[], now).unwrap());
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(take(&window, now));
    assert_eq!(circuit(&window, now), CircuitState::Probing);
    assert_eq!(indicator(&window).as_deref(), Some("probing"));
    assert!(refusal(window.fits(&[()], &[], now)).contains("single probe"));
    assert_eq!(window.earliest_fit(&[()], &[], now), None);
}

// case EW-11
#[test]
fn nobody_behind_a_head_takes_the_probe() {
    let (window, start) = blocked(100, 400);
    let now = start + ms(150);
    let text = refusal(window.try_take(&[()], &[()], now));
    assert!(text.contains("single probe"), "{text}");
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(take(&window, now));
    assert_eq!(circuit(&window, now), CircuitState::Probing);
}

// case EW-12
// case T6
#[test]
fn a_probe_that_succeeds_closes_and_one_that_fails_doubles_the_cooldown() {
    let (window, start) = blocked(100, 400);
    let woken = count_wakes(&window);
    let mut now = start;
    for cooldown in [200, 400, 400] {
        now += ms(1_000);
        assert!(take(&window, now));
        fail(&window, 1, now);
        assert_eq!(circuit(&window, now), CircuitState::Blocked);
        assert_eq!(remaining(&window, now), ms(cooldown));
    }
    assert_eq!(woken.load(Ordering::SeqCst), 0);
    now += ms(1_000);
    assert!(take(&window, now));
    window.on_success(now);
    assert_eq!(circuit(&window, now), CircuitState::Healthy);
    assert_eq!(
        woken.load(Ordering::SeqCst),
        1,
        "a closed circuit is capacity"
    );
    fail(&window, 3, now);
    assert_eq!(remaining(&window, now), ms(100), "it begins anew");
}

// case T6
#[test]
fn the_cooldown_doubles_from_half_a_minute_to_an_hour() {
    let window = builder(50).build().unwrap();
    let mut now = Instant::now();
    fail(&window, 12, now);
    for seconds in [30, 60, 120, 240, 480, 960, 1_920, 3_600, 3_600] {
        assert_eq!(remaining(&window, now), Duration::from_secs(seconds));
        now += Duration::from_secs(seconds);
        assert!(take(&window, now));
        fail(&window, 1, now);
    }
}

// case EW-14
#[test]
fn a_refund_reverts_a_probe_without_a_verdict_and_nothing_else() {
    let (window, start) = blocked(100, 400);
    let now = start + ms(150);
    assert!(take(&window, now));
    window.give(&[()], now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert_eq!(in_use(&window), 0);
    assert!(take(&window, now), "the cooldown was over already");

    fail(&window, 1, now);
    window.give(&[()], now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert_eq!(remaining(&window, now), ms(200), "kept as it is");

    let now = now + ms(250);
    assert!(take(&window, now));
    window.on_success(now);
    window.give(&[()], now);
    assert_eq!(circuit(&window, now), CircuitState::Healthy);
}

/// A window whose circuit opens at the first failure, with a take from before, and a probe that is out.
fn probing_beside_an_ordinary_job() -> (Arc<ElasticWindow>, Demand, Demand, Instant) {
    let window = ElasticWindow::builder("search", 10, ms(1))
        .max_throttle_tenths(0)
        .failures_to_block(1)
        .initial_cooldown(ms(10))
        .build()
        .unwrap();
    let window = Arc::new(window);
    let demand = || {
        let mut demand = Demand::new();
        demand.add(&window, ());
        demand
    };
    let take = |demand: &Demand, now| demand.entries()[0].try_take(None, now).unwrap();
    let (ordinary, probe, start) = (demand(), demand(), Instant::now());
    assert!(take(&ordinary, start));
    fail(&window, 1, start);
    let now = start + ms(20);
    assert!(take(&probe, now));
    assert_eq!(circuit(&window, now), CircuitState::Probing);
    (window, ordinary, probe, now)
}

#[test]
fn a_probe_is_given_up_by_its_own_refund_and_by_no_other() {
    let (window, ordinary, probe, now) = probing_beside_an_ordinary_job();
    ordinary.entries()[0].give(now);
    assert_eq!(circuit(&window, now), CircuitState::Probing);
    assert!(window.try_take(&[()], &[], now).is_err(), "a second probe");
    probe.entries()[0].give(now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(take(&window, now));

    // The probe's first.
    let (window, ordinary, probe, now) = probing_beside_an_ordinary_job();
    probe.entries()[0].give(now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(take(&window, now + ms(1)));
    ordinary.entries()[0].give(now + ms(1));
    assert_eq!(circuit(&window, now + ms(1)), CircuitState::Probing);

    // Nobody says whose it is.
    let (window, _, _, now) = probing_beside_an_ordinary_job();
    window.give(&[()], now);
    assert_eq!(circuit(&window, now), CircuitState::Probing);
    window.give(&[()], now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
}

// case EW-15
// case F34
#[test]
fn a_probe_whose_job_dies_without_a_verdict_expires() {
    let window = builder(50)
        .initial_cooldown(ms(50))
        .probe_timeout(ms(100))
        .build()
        .unwrap();
    let start = Instant::now();
    fail(&window, 12, start);
    let probed = start + ms(50);
    assert!(take(&window, probed));
    assert!(window.fits(&[()], &[], probed + ms(99)).is_err());
    let now = probed + ms(150);
    assert!(window.fits(&[()], &[], now).unwrap());
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(take(&window, now));
    assert_eq!(circuit(&window, now), CircuitState::Probing);
}

// case EW-16
#[test]
fn of_fifty_threads_one_gets_the_probe() {
    let (window, start) = blocked(100, 400);
    let now = start + ms(150);
    let (window, ready) = (Arc::new(window), Arc::new(Barrier::new(50)));
    let threads: Vec<_> = (0..50)
        .map(|_| {
            let (window, ready) = (Arc::clone(&window), Arc::clone(&ready));
            thread::spawn(move || {
                ready.wait();
                window.try_take(&[()], &[], now)
            })
        })
        .collect();
    let answers: Vec<_> = threads.into_iter().map(|it| it.join().unwrap()).collect();
    assert_eq!(
        answers.iter().filter(|it| matches!(it, Ok(true))).count(),
        1
    );
    assert_eq!(answers.iter().filter(|it| it.is_err()).count(), 49);
    assert_eq!(circuit(&window, now), CircuitState::Probing);
}

// case EW-17
#[test]
fn a_hundred_failures_at_once_open_the_circuit_once() {
    let window = Arc::new(builder(50).build().unwrap());
    let now = Instant::now();
    let threads: Vec<_> = (0..100)
        .map(|_| {
            let window = Arc::clone(&window);
            thread::spawn(move || window.on_rate_limit_error(&failure(), now))
        })
        .collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert_eq!(window.throttle(), 9.0);
    assert_eq!(
        remaining(&window, now),
        Duration::from_secs(30),
        "the first cooldown, not doubled"
    );
}

// case EW-19
// case EW-20
// case EW-21
// case EW-22
// case EW-24
// case EW-25
// case EW-26
#[test]
fn every_setting_that_cannot_work_is_refused_by_name_and_value() {
    let zero = Duration::ZERO;
    let cases = [
        (builder(0), "max_requests", "0"),
        (
            ElasticWindow::builder("search", 1, zero),
            "base_window",
            "0ns",
        ),
        (
            builder(1).initial_cooldown(ms(1_000)).max_cooldown(ms(500)),
            "max_cooldown",
            "500ms",
        ),
        (builder(1).probe_timeout(zero), "probe_timeout", "0ns"),
        (builder(1).initial_cooldown(zero), "initial_cooldown", "0ns"),
        (builder(1).failures_to_block(0), "failures_to_block", "0"),
        (
            builder(1).successes_per_decrease(0),
            "successes_per_decrease",
            "0",
        ),
        (builder(1).increment_tenths(0), "increment_tenths", "0"),
        (builder(1).decrement_tenths(0), "decrement_tenths", "0"),
        (builder(1).name(" "), "name", " "),
    ];
    for (builder, field, bad) in cases {
        let error = builder.build().unwrap_err();
        assert!(
            matches!(
                error.kind(),
                ErrorKind::InvalidInput { parameter, value, .. } if parameter == field && value == bad
            ),
            "{error}"
        );
    }
}

// case EW-27
#[test]
fn it_needs_http_and_is_named_for_its_service() {
    struct SuffixedRateLimiter;
    struct Plain;
    struct RateLimiter;
    fn named<T>() -> String {
        let window = ElasticWindow::for_service::<T>(1, SECOND).build().unwrap();
        assert!(window.requires_http_connection());
        window.name().to_owned()
    }
    assert_eq!(named::<SuffixedRateLimiter>(), "Suffixed");
    assert_eq!(named::<Plain>(), "Plain");
    assert_eq!(named::<RateLimiter>(), "RateLimiter");
}

// case EW-30
#[test]
fn whatever_twenty_threads_do_the_figures_stay_in_their_bounds() {
    let (window, start) = window(50);
    let window = Arc::new(window);
    let threads: Vec<_> = (0..20_u32)
        .map(|thread| {
            let window = Arc::clone(&window);
            thread::spawn(move || {
                for step in 0..500_u32 {
                    let now = start + ms(u64::from(step) * 3);
                    match (thread + step * 7) % 6 {
                        0..=2 => drop(window.try_take(&[()], &[], now)),
                        3 => window.on_success(now),
                        4 => window.on_rate_limit_error(&failure(), now),
                        _ => window.give(&[()], now),
                    }
                    let status = window.status(now);
                    assert!((0.0..=9.0).contains(&status.throttle));
                    assert!(status.available <= 50);
                    assert!(in_use(&window) <= 50);
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|it| it.join().unwrap());
}

// case EW-31
#[test]
fn the_indicator_tells_the_throttle_and_the_circuit() {
    let (window, now) = window(3);
    assert_eq!(indicator(&window), None);
    let category = window.describe(window.key()).category;
    assert_eq!(category, AccountCategory::ElasticWindow);
    fail(&window, 1, now);
    assert_eq!(indicator(&window).as_deref(), Some("throttle:2.0x"));
    fail(&window, 11, now);
    assert_eq!(indicator(&window).as_deref(), Some("blocked"));
}

// case EW-32
#[test]
fn a_success_resets_the_streak_and_a_late_verdict_moves_only_a_probe() {
    let (window, now) = window(3);
    fail(&window, 11, now);
    window.on_success(now);
    fail(&window, 2, now);
    assert_eq!(circuit(&window, now), CircuitState::Healthy);
    fail(&window, 1, now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    fail(&window, 20, now + ms(10));
    assert_eq!(remaining(&window, now), Duration::from_secs(30));
    window.on_success(now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);

    let expires = builder(3).probe_timeout(ms(100)).build().unwrap();
    fail(&expires, 12, now);
    let probed = now + Duration::from_secs(30);
    assert!(take(&expires, probed));
    expires.on_success(probed + ms(100));
    assert_eq!(circuit(&expires, probed + ms(100)), CircuitState::Blocked);
    assert!(take(&expires, probed + ms(100)));
    expires.on_success(probed + ms(101));
    assert_eq!(circuit(&expires, probed + ms(101)), CircuitState::Healthy);
}

#[test]
fn the_largest_settings_overflow_nothing() {
    let window = ElasticWindow::builder("search", u32::MAX, Duration::MAX)
        .increment_tenths(u32::MAX)
        .decrement_tenths(u32::MAX)
        .successes_per_decrease(1)
        .max_throttle_tenths(u32::MAX)
        .initial_cooldown(Duration::MAX)
        .max_cooldown(Duration::MAX)
        .build()
        .unwrap();
    let now = Instant::now();
    assert!(take(&window, now));
    fail(&window, 4, now);
    assert_eq!(circuit(&window, now), CircuitState::Blocked);
    assert!(window.try_take(&[()], &[], now + SECOND).is_err());
    assert_eq!(window.earliest_fit(&[()], &[], now), None);
    window.on_success(now + SECOND);
    assert_eq!(window.throttle(), 0.0);
}

proptest! {
    /// However takes, gives, verdicts and time are mixed: no stretch of the unthrottled length holds
    /// more than it may, and at the instant that it names an ask fits, not sooner.
    #[test]
    fn no_window_is_overfull_and_deadlines_are_exact(
        steps in proptest::collection::vec((0..6_u8, 0..600_u64), 1..200),
    ) {
        let (window, mut now) = window(4);
        let mut kept: Vec<Instant> = Vec::new();
        for (act, wait) in steps {
            now += ms(wait);
            match act {
                0..=2 => {
                    if window.try_take(&[()], &[], now).is_ok_and(|took| took) {
                        kept.push(now);
                    }
                }
                3 => window.on_success(now),
                4 => window.on_advisory_pressure(now),
                _ => {
                    if kept.pop().is_some() {
                        window.give(&[()], now);
                    }
                }
            }
            let inside = kept.iter().filter(|at| now - **at < SECOND).count();
            prop_assert!(inside <= 4);
            if let Some(at) = window.earliest_fit(&[()], &[], now) {
                prop_assert!(window.fits(&[()], &[], at).unwrap());
                let before = at - Duration::from_nanos(1);
                prop_assert!(before < now || !window.fits(&[()], &[], before).unwrap());
            }
        }
    }
}

struct Windows;

impl AccountFixture for Windows {
    type Limiter = ElasticWindow;

    fn fresh(&self, _: Instant) -> Arc<ElasticWindow> {
        Arc::new(builder(3).build().unwrap())
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
fn a_window_keeps_the_contract_of_accounts() {
    check(&Windows);
}
