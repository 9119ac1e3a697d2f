"""What all sections of the configuration have in common."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator


class Section(BaseModel):
    """Frozen; unknown keys, infinities, NaN and values of another type are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        """pydantic takes true for 1, "7" for 7 and 1 for true; TOML can say what it means."""
        asked = cls.model_fields[info.field_name or ""].annotation
        if asked is bool and not isinstance(value, bool):
            raise ValueError("must be true or false")
        if asked is int and (not isinstance(value, int) or isinstance(value, bool)):
            raise ValueError("must be a whole number")
        if asked is float and (not isinstance(value, int | float) or isinstance(value, bool)):
            raise ValueError("must be a number")
        return value
