"""Grafana's provisioning files as its documentation has them (Administration, Provision Grafana):
keys that it would ignore are refused, which Grafana itself does not do. No tests.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, PositiveInt, StringConstraints
from pydantic.alias_generators import to_camel

Named = Annotated[str, StringConstraints(min_length=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, alias_generator=to_camel)


class PrometheusOptions(_Strict):
    """jsonData of a data source of type prometheus, as far as we may want it."""

    http_method: Literal["GET", "POST"] = "POST"
    time_interval: Annotated[str, StringConstraints(pattern=r"^\d+(ms|s|m|h)$")] = "15s"
    manage_alerts: bool = True
    prometheus_type: Literal["Prometheus", "Cortex", "Mimir", "Thanos"] = "Prometheus"
    prometheus_version: str = ""
    incremental_querying: bool = False
    disable_metrics_lookup: bool = False
    custom_query_parameters: str = ""


class DataSource(_Strict):
    """One entry of `datasources`."""

    name: Named
    type: Literal["prometheus"]
    # 1 to 40 letters, digits, dashes and underscores.
    uid: Annotated[str, StringConstraints(pattern=r"^[a-zA-Z0-9_-]{1,40}$")]
    access: Literal["proxy", "direct"]
    url: Annotated[str, StringConstraints(pattern=r"^https?://[a-z0-9.-]+(:\d+)?$")]
    org_id: PositiveInt = 1
    is_default: bool = False
    editable: bool = False
    basic_auth: bool = False
    with_credentials: bool = False
    version: PositiveInt = 1
    json_data: PrometheusOptions = PrometheusOptions()


class DataSources(_Strict):
    """A file of provisioning/datasources."""

    api_version: Literal[1]
    datasources: Annotated[list[DataSource], Field(min_length=1)]
    prune: bool = False


class FileOptions(_Strict):
    """Where a provider of type file looks."""

    path: Annotated[str, StringConstraints(pattern=r"^/")]
    folders_from_files_structure: bool = False


class Provider(_Strict):
    """One entry of `providers`."""

    name: Named
    type: Literal["file"]
    org_id: PositiveInt = 1
    folder: str = ""
    folder_uid: str = ""
    disable_deletion: bool = False
    allow_ui_updates: bool = False
    update_interval_seconds: PositiveInt = 10
    options: FileOptions


class Dashboards(_Strict):
    """A file of provisioning/dashboards."""

    api_version: Literal[1]
    providers: Annotated[list[Provider], Field(min_length=1)]
