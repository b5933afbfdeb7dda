//! Money, exact (`COST-1`), and what a model charges.
//!
//! # Invariants
//!
//! 1. An amount is a whole number of billionths of one currency. It is never converted, and amounts
//!    of two currencies are never added or compared.
//! 2. What a call costs is rounded once, at the end, to the nearest billionth.

use std::fmt;
use std::str::FromStr;

use crate::error::JobError;

/// Billionths in a unit of a currency.
const BILLION: u128 = 1_000_000_000;
/// Prices are per so many tokens.
const MILLION: u128 = 1_000_000;
/// The largest price per million tokens: far above any, and far below where a sum could overflow.
const MAX_PRICE: f64 = 1e9;
/// The largest multiplier of a price, for the same reason.
const MAX_MULTIPLIER: f64 = 1e3;

/// A currency, by its three letters of ISO 4217.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Currency([u8; 3]);

impl Currency {
    /// The United States dollar.
    pub const USD: Self = Self(*b"USD");
    /// The euro.
    pub const EUR: Self = Self(*b"EUR");

    /// The three letters.
    #[must_use]
    pub fn code(&self) -> &str {
        // Made of three capitals, so it is text.
        std::str::from_utf8(&self.0).unwrap_or("???")
    }
}

impl FromStr for Currency {
    type Err = JobError;

    /// # Errors
    /// `InvalidInput` for anything but three capital letters.
    fn from_str(text: &str) -> Result<Self, JobError> {
        match <[u8; 3]>::try_from(text.as_bytes()) {
            Ok(code) if code.iter().all(u8::is_ascii_uppercase) => Ok(Self(code)),
            _ => Err(JobError::invalid_input(
                "currency",
                text,
                "must be three capital letters, such as USD",
            )),
        }
    }
}

impl fmt::Display for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.code())
    }
}

impl fmt::Debug for Currency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.code())
    }
}

/// An exact amount of money in one currency.
///
/// ```
/// use nucleo_runtime::models::Cost;
///
/// let cap: Cost = "0.01 USD".parse()?;
/// assert_eq!(cap.billionths(), 10_000_000);
/// assert_eq!(cap.to_string(), "0.010000 USD");
/// # Ok::<(), nucleo_runtime::JobError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cost {
    billionths: u128,
    currency: Currency,
}

impl Cost {
    /// So many billionths of a unit of the currency.
    #[must_use]
    pub const fn from_billionths(billionths: u128, currency: Currency) -> Self {
        Self {
            billionths,
            currency,
        }
    }

    /// Nothing, in this currency.
    #[must_use]
    pub const fn zero(currency: Currency) -> Self {
        Self::from_billionths(0, currency)
    }

    /// The amount in billionths of a unit.
    #[must_use]
    pub const fn billionths(&self) -> u128 {
        self.billionths
    }

    /// The currency.
    #[must_use]
    pub const fn currency(&self) -> Currency {
        self.currency
    }

    /// Both together. `None` for amounts of two currencies.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        (self.currency == other.currency).then(|| {
            Self::from_billionths(
                self.billionths.saturating_add(other.billionths),
                self.currency,
            )
        })
    }

    /// Whether it is strictly more than `limit`. `None` for amounts of two currencies, which do not
    /// compare.
    #[must_use]
    pub fn exceeds(&self, limit: &Self) -> Option<bool> {
        (self.currency == limit.currency).then_some(self.billionths > limit.billionths)
    }
}

impl fmt::Display for Cost {
    /// With six decimals, rounded half up.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let millionths = self.billionths.saturating_add(500) / 1_000;
        write!(
            f,
            "{}.{:06} {}",
            millionths / MILLION,
            millionths % MILLION,
            self.currency
        )
    }
}

impl FromStr for Cost {
    type Err = JobError;

    /// Reads an amount and a currency, such as `12.5 USD`, exactly.
    ///
    /// # Errors
    /// `InvalidInput` for anything else, a negative amount and one finer than a billionth.
    fn from_str(text: &str) -> Result<Self, JobError> {
        let refused = |rule: &str| JobError::invalid_input("cost", text, rule);
        let (amount, currency) = text
            .trim()
            .split_once(' ')
            .ok_or_else(|| refused("must be an amount and a currency, such as 12.5 USD"))?;
        let (units, fraction) = amount.split_once('.').unwrap_or((amount, "0"));
        let digits = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if !digits(units) || !digits(fraction) || fraction.len() > 9 {
            return Err(refused(
                "the amount must be digits, with at most nine after the point",
            ));
        }
        let billionths = units
            .parse::<u64>()
            .ok()
            .zip(format!("{fraction:0<9}").parse::<u64>().ok())
            .map(|(units, parts)| u128::from(units) * BILLION + u128::from(parts))
            .ok_or_else(|| refused("the amount is too large"))?;
        Ok(Self::from_billionths(billionths, currency.trim().parse()?))
    }
}

/// The tokens of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Usage {
    /// Tokens read, those written to and read from the provider's cache among them.
    pub input_tokens: u64,
    /// Tokens written, thinking among them.
    pub output_tokens: u64,
    /// Of the tokens read, those that the provider put into its cache.
    pub cache_write_tokens: u64,
    /// Of the tokens read, those that the provider had in its cache.
    pub cache_read_tokens: u64,
}

impl Usage {
    /// So many tokens read and written, none of them cached.
    #[must_use]
    pub const fn new(input_tokens: u64, output_tokens: u64) -> Self {
        Self {
            input_tokens,
            output_tokens,
            cache_write_tokens: 0,
            cache_read_tokens: 0,
        }
    }

    /// Says how many of the tokens read went into the provider's cache, and came from it.
    #[must_use]
    pub const fn cached(mut self, written: u64, read: u64) -> Self {
        self.cache_write_tokens = written;
        self.cache_read_tokens = read;
        self
    }
}

/// What a model charges for a million tokens, in one currency.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Prices {
    currency: Currency,
    /// In billionths.
    input: u128,
    output: u128,
    /// In millionths of the input's price.
    cache_write: u128,
    cache_read: u128,
}

impl Prices {
    /// The prices of a million tokens read and written. Each is rounded to the billionth.
    ///
    /// # Errors
    /// `InvalidInput` for a price that is negative, no number or past a billion, and for a currency
    /// that is not three capitals.
    pub fn per_million(currency: &str, input: f64, output: f64) -> Result<Self, JobError> {
        Ok(Self {
            currency: currency.parse()?,
            input: scaled("input_price", input, MAX_PRICE, BILLION)?,
            output: scaled("output_price", output, MAX_PRICE, BILLION)?,
            cache_write: MILLION,
            cache_read: MILLION,
        })
    }

    /// Prices and multipliers (input, output, cache written, cache read), or every fault in them.
    #[cfg(feature = "catalog-file")]
    pub(crate) fn checked(
        currency: &str,
        [input, output, write, read]: [f64; 4],
    ) -> Result<Self, Vec<JobError>> {
        let known = currency.parse::<Currency>();
        let prices = Self::per_million("USD", input, 0.0);
        let written = Self::per_million("USD", 0.0, output);
        let multiplied = Self::per_million("USD", 0.0, 0.0)
            .and_then(|prices| prices.cache_multipliers(write, 1.0));
        let reread = Self::per_million("USD", 0.0, 0.0)
            .and_then(|prices| prices.cache_multipliers(1.0, read));
        match (known, prices, written, multiplied, reread) {
            (Ok(currency), Ok(prices), Ok(written), Ok(multiplied), Ok(reread)) => Ok(Self {
                currency,
                input: prices.input,
                output: written.output,
                cache_write: multiplied.cache_write,
                cache_read: reread.cache_read,
            }),
            (known, prices, written, multiplied, reread) => Err([
                known.err(),
                prices.err(),
                written.err(),
                multiplied.err(),
                reread.err(),
            ]
            .into_iter()
            .flatten()
            .collect()),
        }
    }

    /// What the tokens of the cache cost, as multiples of the input's price. 1 and 1 unless set.
    ///
    /// # Errors
    /// `InvalidInput` for a multiplier that is negative, no number or past a thousand.
    pub fn cache_multipliers(mut self, write: f64, read: f64) -> Result<Self, JobError> {
        self.cache_write = scaled("cache_write_multiplier", write, MAX_MULTIPLIER, MILLION)?;
        self.cache_read = scaled("cache_read_multiplier", read, MAX_MULTIPLIER, MILLION)?;
        Ok(self)
    }

    /// The currency.
    #[must_use]
    pub const fn currency(&self) -> Currency {
        self.currency
    }

    /// What these tokens cost.
    #[must_use]
    pub fn cost(&self, usage: &Usage) -> Cost {
        let cached = usage
            .cache_write_tokens
            .saturating_add(usage.cache_read_tokens);
        let plain = usage.input_tokens.saturating_sub(cached);
        // In millionths of a billionth, times a million tokens.
        let parts = [
            (plain, self.input, MILLION),
            (usage.cache_write_tokens, self.input, self.cache_write),
            (usage.cache_read_tokens, self.input, self.cache_read),
            (usage.output_tokens, self.output, MILLION),
        ];
        let sum = parts
            .into_iter()
            .fold(0_u128, |sum, (tokens, price, share)| {
                sum.saturating_add(
                    u128::from(tokens)
                        .saturating_mul(price)
                        .saturating_mul(share),
                )
            });
        let unit = MILLION * MILLION;
        Cost::from_billionths(sum.saturating_add(unit / 2) / unit, self.currency)
    }

    /// By what cheap and dear compare: a million tokens each way.
    pub(crate) fn list_price(&self) -> (Currency, u128) {
        (self.currency, self.input.saturating_add(self.output))
    }
}

fn scaled(field: &str, figure: f64, most: f64, scale: u128) -> Result<u128, JobError> {
    if !(0.0..=most).contains(&figure) {
        return Err(JobError::invalid_input(
            field,
            figure,
            format!("must be a number from 0 to {most}"),
        ));
    }
    // In range by the check: no price has more digits than a double holds.
    Ok((figure * scale as f64).round() as u128)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn usd() -> Prices {
        Prices::per_million("USD", 2.0, 10.0)
            .and_then(|prices| prices.cache_multipliers(1.25, 0.1))
            .unwrap()
    }

    fn cost(text: &str) -> Cost {
        text.parse().unwrap()
    }

    // case COST-01
    #[test]
    fn the_tokens_of_the_cache_have_a_price_of_their_own() {
        let usage = Usage::new(10_000, 1_000).cached(2_000, 3_000);
        assert_eq!(usd().cost(&usage), cost("0.0256 USD"));
    }

    // case COST-02
    #[test]
    fn amounts_are_exact_to_the_billionth() {
        let thousandth = Prices::per_million("USD", 1_000.0, 0.0).unwrap();
        let one = thousandth.cost(&Usage::new(1, 0));
        let sum = (0..1_000).fold(Cost::zero(Currency::USD), |sum, _| {
            sum.checked_add(one).unwrap()
        });
        assert_eq!(sum, cost("1 USD"));
        assert_eq!(
            cost("0.001189 USD").checked_add(cost("0.001538 USD")),
            Some(cost("0.002727 USD"))
        );
        // Half a billionth counts as one; less counts as none.
        let fine = Prices::per_million("USD", 0.0005, 0.0).unwrap();
        assert_eq!(fine.cost(&Usage::new(1, 0)).billionths(), 1);
        let finer = Prices::per_million("USD", 0.0004, 0.0).unwrap();
        assert_eq!(finer.cost(&Usage::new(1, 0)).billionths(), 0);
    }

    // case COST-04
    #[test]
    fn exceeding_is_strict_and_within_one_currency() {
        let five = cost("5 USD");
        assert_eq!(five.exceeds(&cost("5.0 USD")), Some(false));
        assert_eq!(five.exceeds(&cost("4.999999 USD")), Some(true));
        assert_eq!(five.exceeds(&cost("1 EUR")), None);
        assert_eq!(five.checked_add(cost("1 EUR")), None);
        assert_eq!(cost("3 USD").to_string(), "3.000000 USD");
        assert_eq!(cost("0.002727 USD").to_string(), "0.002727 USD");
    }

    // case COST-05
    #[test]
    fn a_reservation_counts_nothing_as_cached() {
        assert_eq!(usd().cost(&Usage::new(1_000_000, 100_000)), cost("3 USD"));
    }

    #[test]
    fn what_is_no_amount_or_no_price_is_refused() {
        for text in [
            "",
            "5",
            "USD",
            "-1 USD",
            "1.0000000001 USD",
            "1 usd",
            "1 DOLLAR",
            ". USD",
            "99999999999999999999999 USD",
        ] {
            assert!(text.parse::<Cost>().is_err(), "{text}");
        }
        for price in [-0.01, f64::NAN, f64::INFINITY, 1e12] {
            assert!(Prices::per_million("USD", price, 1.0).is_err(), "{price}");
            assert!(usd().cache_multipliers(1.0, price).is_err(), "{price}");
        }
        assert!(Prices::per_million("Usd", 1.0, 1.0).is_err());
    }

    #[test]
    fn the_largest_figures_overflow_nothing() {
        let dear = Prices::per_million("USD", 1e9, 1e9)
            .and_then(|prices| prices.cache_multipliers(1e3, 1e3))
            .unwrap();
        let most = dear.cost(&Usage::new(u64::MAX, u64::MAX).cached(u64::MAX, u64::MAX));
        assert!(most.billionths() > 0);
    }
}
