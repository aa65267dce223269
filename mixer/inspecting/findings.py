"""What of a run's data will hurt: a sentence each, with the figure that says so."""

from mixer.inspecting import run_findings, stream_findings
from mixer.inspecting.finding import Finding
from mixer.inspecting.inspection import Inspection
from mixer.inspecting.overlap_findings import overlap_findings


def findings_of(inspection: Inspection) -> list[Finding]:
    """Finds what of a run's data will hurt.

    Args:
        inspection: What was seen.

    Returns:
        The findings: those of single streams, of samples that come more than once, and of the run as a whole.
    """
    return [
        *(finding for one in inspection.streams for look in stream_findings.LOOKS for finding in look(inspection, one)),
        *overlap_findings(inspection.overlaps),
        *(finding for look in run_findings.LOOKS for finding in look(inspection)),
    ]
