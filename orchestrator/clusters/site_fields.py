"""Fields of a profile about its network, its site and its price."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from orchestrator.config.model import Count, Positive, Strict, Text
from orchestrator.money import Price, checked_currency

Architecture = Literal["x86_64", "aarch64"]


class RendezvousFields(Strict):
    """Address of the first rank: the name of its host, and a port."""

    host_suffix: Annotated[str, Field(pattern=r"^[A-Za-z0-9.-]+$")] | None = Field(
        default=None,
        description="Text after the host name, if a faster network has its own names.",
        examples=["-ib"],
    )
    port: Annotated[int, Field(strict=True, ge=1024, le=65535)] | None = Field(
        default=None,
        description="Port of the first rank. Without it the job id selects one of 10,000 ports.",
        examples=[29500],
    )


class NetworkFields(Strict):
    """Network between the nodes."""

    fabric: Text = Field(description="Name of the network.", examples=["InfiniBand HDR"])
    adapters_per_node: Count | None = Field(
        default=None, description="Number of network adapters of a node, without those for storage.", examples=[8]
    )
    adapter_gbit_s: Positive | None = Field(
        default=None, description="Rate of one adapter in Gbit/s, in one direction.", examples=[200]
    )


class SiteFields(Strict):
    """Further settings of a site for planning and checks."""

    architecture: Architecture | None = Field(default=None, description="Architecture of the CPUs of the nodes.")
    cpus_per_node: Count | None = Field(
        default=None, description="Number of CPUs of a node, as Slurm counts CPUs.", examples=[128]
    )
    offline_nodes: bool = Field(
        default=False, description="true: compute nodes reach no registry, so the login node imports images."
    )
    staging_folder: Annotated[str, Field(pattern=r"^[/<]")] | None = Field(
        default=None, description="Folder of imported images, on the shared file system.", examples=["/shared/images"]
    )
    login_sees_paths: bool = Field(
        default=True, description="false: the paths of the profile exist on compute nodes only."
    )


class PriceFields(Strict):
    """Price of one GPU for one hour."""

    value: Positive = Field(description="Amount of money in `currency`.", examples=[2.5])
    currency: Annotated[str, AfterValidator(checked_currency)] = Field(
        description="Currency, an ISO 4217 code of three letters.",
        examples=["USD"],
        json_schema_extra={"pattern": "^[A-Z]{3}$"},
    )

    @property
    def price(self) -> Price:
        """Price as a value for calculations."""
        return Price(self.value, self.currency)
