"""Prices and amounts of money, with the currency as an ISO 4217 code."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from orchestrator.errors import Problem, ReproError, did_you_mean

# ISO 4217, list one: the codes of currencies that are in use.
_CODES = (
    "AED AFN ALL AMD AOA ARS AUD AWG AZN BAM BBD BDT BHD BIF BMD BND BOB BRL BSD BTN BWP BYN BZD CAD CDF CHF CLP "
    "CNY COP CRC CUP CVE CZK DJF DKK DOP DZD EGP ERN ETB EUR FJD FKP GBP GEL GHS GIP GMD GNF GTQ GYD HKD HNL HTG "
    "HUF IDR ILS INR IQD IRR ISK JMD JOD JPY KES KGS KHR KMF KPW KRW KWD KYD KZT LAK LBP LKR LRD LSL LYD MAD MDL "
    "MGA MKD MMK MNT MOP MRU MUR MVR MWK MXN MYR MZN NAD NGN NIO NOK NPR NZD OMR PAB PEN PGK PHP PKR PLN PYG QAR "
    "RON RSD RUB RWF SAR SBD SCR SDG SEK SGD SHP SLE SOS SRD SSP STN SVC SYP SZL THB TJS TMT TND TOP TRY TTD TWD "
    "TZS UAH UGX USD UYU UZS VED VES VND VUV WST XAF XCD XCG XOF XPF YER ZAR ZMW ZWG"
)
CURRENCIES = frozenset(_CODES.split())


def checked_currency(code: str) -> str:
    """Return the code; ValueError if it is not one of ISO 4217."""
    if code not in CURRENCIES:
        similar = did_you_mean(code.upper(), CURRENCIES)
        raise ValueError(f"must be an ISO 4217 code such as USD or EUR{f'; {similar}' if similar else ''}")
    return code


@dataclass(frozen=True, slots=True)
class Money:
    """An amount of money."""

    amount: float
    currency: str

    def __str__(self) -> str:
        """Return `12.50 USD`."""
        return f"{self.amount:.2f} {self.currency}"


@dataclass(frozen=True, slots=True)
class Price:
    """Price of one GPU for one hour."""

    value: float
    currency: str

    def of(self, gpu_hours: float) -> Money:
        """Return the cost of GPU-hours."""
        return Money(self.value * gpu_hours, self.currency)


def totals(amounts: Iterable[Money]) -> tuple[Money, ...]:
    """Return the sum of the amounts of each currency."""
    sums: dict[str, float] = {}
    for money in amounts:
        sums[money.currency] = sums.get(money.currency, 0.0) + money.amount
    return tuple(Money(amount, currency) for currency, amount in sums.items())


def recorded_price(profile: Mapping[str, object]) -> Price | None:
    """Return the price in a profile that was recorded with a run; None if it has none."""
    price = profile.get("price_per_gpu_hour")
    if not isinstance(price, Mapping):
        return None
    value, currency = price.get("value"), price.get("currency")
    if not isinstance(value, (int, float)) or not isinstance(currency, str):
        return None
    return Price(float(value), currency)


def read_cost_budget(text: str, price: Price | None, cluster: str) -> Money:
    """Parse `50USD` or `50`, in the currency of the price; ReproError for any other text, currency, or no price."""
    match = re.fullmatch(r"([0-9]{1,12}(?:\.[0-9]{1,6})?) ?([A-Za-z]{3})?", text)
    if match is None or not float(match[1]):
        hint = "for example 50USD, or 50 in the currency of the profile"
        raise ReproError(Problem(f"--cost-budget {text}: not an amount of money", hint=hint))
    if price is None:
        hint = "set price_per_gpu_hour: {value: ..., currency: ...} in the profile of --cluster, or leave it out"
        raise ReproError(Problem(f"--cost-budget: {cluster} has no price of a GPU-hour", hint=hint))
    if match[2] and match[2].upper() != price.currency:
        what = f"--cost-budget {text}: the price of {cluster} is in {price.currency}"
        raise ReproError(Problem(what, hint=f"give an amount in {price.currency}"))
    return Money(float(match[1]), price.currency)
