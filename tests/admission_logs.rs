//! What limits write to the log. In a binary of its own: a process has one logger.

use std::sync::Mutex;
use std::time::Instant;

use nucleo_runtime::UpstreamFailure;
use nucleo_runtime::admission::{RateLimiter, TokenBucket, TokenBudget};

static LINES: Mutex<Vec<(log::Level, String)>> = Mutex::new(Vec::new());

struct Recorder;

impl log::Log for Recorder {
    fn enabled(&self, _: &log::Metadata<'_>) -> bool {
        true
    }

    fn log(&self, record: &log::Record<'_>) {
        let line = (record.level(), record.args().to_string());
        LINES.lock().unwrap().push(line);
    }

    fn flush(&self) {}
}

fn written() -> Vec<(log::Level, String)> {
    std::mem::take(&mut LINES.lock().unwrap())
}

// case TB-14
// case TB-15
#[test]
fn a_bucket_logs_an_upstream_failure_and_a_new_budget_once_each() {
    log::set_logger(&Recorder).unwrap();
    log::set_max_level(log::LevelFilter::Trace);
    let now = Instant::now();
    let bucket = TokenBucket::new("gpt", TokenBudget::new(1_000, 60), now).unwrap();

    let failure = UpstreamFailure::with_status(429, "OpenAI", "slow down");
    bucket.on_rate_limit_error(&failure, now);
    assert_eq!(bucket.throttle(), 0.5);
    assert_eq!(
        written(),
        [(
            log::Level::Warn,
            "gpt upstream failure: HTTP 429 from OpenAI: slow down".to_owned()
        )]
    );

    bucket.set_config(TokenBudget::new(1_000, 60), now);
    assert_eq!(written(), []);
    bucket.set_config(TokenBudget::new(2_000, 60), now);
    let lines = written();
    assert_eq!(lines.len(), 1);
    assert!(lines[0].1.starts_with("Updated rate limits for gpt"));
}
