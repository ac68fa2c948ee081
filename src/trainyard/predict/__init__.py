"""Job x Machine -> Plan: what a step costs before anybody ran it. No torch in here."""
