"""All dashboards."""

from __future__ import annotations

from deploy.grafana.overview import OVERVIEW
from deploy.grafana.recalibrators import RECALIBRATORS
from deploy.grafana.service import SERVICE
from deploy.grafana.slice_detail import SLICE

BOARDS = (OVERVIEW, SLICE, RECALIBRATORS, SERVICE)
