//! What a service outside answered when it failed (`ERR-5`).

use std::fmt;
use std::time::Duration;

use super::http;

/// What an upstream service answered when it failed, kept reachable through every wrapping.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpstreamFailure {
    /// The HTTP status, or 0 when no response arrived.
    pub status: u16,
    /// The service.
    pub service: String,
    /// Where it was asked, without a query; empty when that is not known.
    pub endpoint: String,
    /// What it said.
    pub detail: String,
    /// The first kilobyte of its answer; empty when there was none.
    pub body: String,
    /// How long it asked to be left alone, where it did.
    pub retry_after: Option<Duration>,
}

impl UpstreamFailure {
    /// A failure without a response: a refused connection, a read that timed out.
    #[must_use]
    pub fn without_response(service: impl Into<String>, detail: impl Into<String>) -> Self {
        Self::with_status(0, service, detail)
    }

    /// A failure with the status that the service answered.
    #[must_use]
    pub fn with_status(status: u16, service: impl Into<String>, detail: impl Into<String>) -> Self {
        Self {
            status,
            service: service.into(),
            endpoint: String::new(),
            detail: detail.into(),
            body: String::new(),
            retry_after: None,
        }
    }

    /// Adds where it was asked and what it answered, of which the first kilobyte is kept.
    #[must_use]
    pub fn answered(mut self, endpoint: &str, body: &str) -> Self {
        self.endpoint = endpoint
            .split_once('?')
            .map_or(endpoint, |(path, _)| path)
            .to_owned();
        self.body = http::first_kilobyte(body).to_owned();
        self
    }

    /// Adds the `Retry-After` that the service sent.
    #[must_use]
    pub fn retry_after(mut self, wait: Duration) -> Self {
        self.retry_after = Some(wait);
        self
    }
}

impl fmt::Display for UpstreamFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.status {
            0 => write!(f, "no response")?,
            status => write!(f, "HTTP {status}")?,
        }
        if !self.service.is_empty() {
            write!(f, " from {}", self.service)?;
        }
        if !self.endpoint.is_empty() {
            write!(f, " at {}: {}", self.endpoint, self.body)?;
        } else if !self.detail.is_empty() {
            write!(f, ": {}", self.detail)?;
        }
        if let Some(wait) = self.retry_after {
            write!(f, " (server asked for {}s)", wait.as_secs())?;
        }
        Ok(())
    }
}
