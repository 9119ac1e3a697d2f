"""Pure: one file a method, each fit → a frozen value with apply; and the choice by slice."""
