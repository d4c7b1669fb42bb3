"""Case + cluster -> Plan: refused with every reason, or ready to be rendered."""
